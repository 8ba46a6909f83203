"""Lists that are one text on a command line and in the environment: its parts are separated by commas."""

from typing import Annotated

from pydantic import BeforeValidator
from pydantic_settings import NoDecode


def parts_of(value: object) -> object:
    """Anything but text is left to the field."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


CommaList = Annotated[list[str], NoDecode, BeforeValidator(parts_of)]
