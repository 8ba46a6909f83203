"""The console of every command that prints what models, tools, judges and tasks wrote."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from shared.outside_text import visible


class OutsideConsole(Console):
    """Prints text of models, tools and tasks: nothing in it steers the terminal.

    No emoji: rich would render `:train:` in the id "main:train:0:t0" as a tram.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)
