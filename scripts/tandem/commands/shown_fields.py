"""How `tandem show` prints: labelled values below headings."""

from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from tandem.commands.connect import print_text
from tandem.commands.long_texts import readable


def field(out: Console, label: str, value: Any, *, style: str = "bold") -> None:
    """Nothing without a value."""
    if value is not None and value != "":
        print_text(out, label, readable(str(value)), style=style)


def heading(out: Console, title: str, characters: str = "─") -> None:
    """A rule would cut a title with a long id."""
    out.print(Rule(characters=characters))
    out.print(Text(title, style="bold"), soft_wrap=True)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
