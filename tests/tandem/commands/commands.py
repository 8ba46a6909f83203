"""Helpers of the tests of `tandem`."""

from collections.abc import Callable

from typer.testing import Result

RECORD = "main:train:0:t0:0:1"  # of the run that the fixture `played` makes
Command = Callable[..., Result]
