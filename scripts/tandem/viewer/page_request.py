"""What a page is asked: the run, its store and the parameters of the URL; and how ids stand in URLs.

An id may contain every character (`main:train:0:openai/gsm8k?.json`). In a URL it is quoted twice, so that a server between that
unquotes once, a `/` and a final `.json` change nothing. Usual ids look as they are.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request

from shared.documents.run import Run
from shared.errors import TandemError
from shared.names import SPLITS
from shared.store import Store

TWIN = ".json"  # the same page as data


class NotThere(TandemError):
    """The page, or what it is about, does not exist: status 404."""


class BadQuestion(TandemError):
    """A parameter of the URL is wrong: status 400. The message says what was found and expected."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request for a page of a run."""

    request: Request
    store: Store
    run: Run

    def id(self, name: str) -> str:
        """An id in the path: the parameter `{name:path}` of the page's route."""
        return unquote(self.request.path_params[name])

    def text(self, name: str, default: str | None = None) -> str | None:
        """A parameter behind the question mark; an empty one is none."""
        return self.request.query_params.get(name) or default

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**53) -> int:
        """Raises BadQuestion."""
        given = self.text(name)
        if given is None:
            return default
        try:
            value = int(given)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise BadQuestion(f"{name} is {given[:80]!r}; expected a whole number from {least} to {most}")
        return value


def check_split(split: str) -> str:
    """Return it. Raises BadQuestion for a split that samplers do not play."""
    if split not in SPLITS:
        raise BadQuestion(f"split is {split[:80]!r}; expected {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
    return split


def in_url(part: Any) -> str:
    """An id as one part of a path."""
    inner = quote(str(part), safe=":")
    if inner.endswith(TWIN):
        inner = inner.removesuffix(TWIN) + "%2Ejson"
    return quote(inner, safe=":")
