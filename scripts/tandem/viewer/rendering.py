"""Templates. Everything that they print is text: escaped, with control and bidirectional characters made visible."""

import math
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from shared.documents.run import Run
from shared.outside_text import UNSEEN
from tandem.viewer.images import alternative_text, caption, thumbnail
from tandem.viewer.page_request import in_url
from tandem.viewer.sub_path import root_of

FOLDER = Path(__file__).parent
NOTHING = "–"


def visible(text: str) -> str:
    """The text with each character that would not be seen, or change how others are, as its code: `⟨U+202E⟩`."""
    return UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def printed(value: Any) -> Any:
    """Applied to every value that a template prints."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    return visible(str(value))


def when(time: datetime | None) -> str:
    """A stored time (UTC)."""
    return NOTHING if time is None else time.strftime("%Y-%m-%d %H:%M:%S")


def number(value: float | None, digits: int = 4) -> str:
    """A whole number with its thousands, another with so many digits."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    if float(value).is_integer() and abs(value) < 2**53:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def query(**parameters: Any) -> str:
    """`?name=value&…` of those that are given; nothing without any."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return "?" + urlencode(given) if given else ""


TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=printed,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(visible=visible, when=when, number=number, duration=duration, in_url=in_url)
TEMPLATES.filters.update(thumbnail=thumbnail, caption=caption, alternative_text=alternative_text)
# (name, path behind /runs/RUN, label) of the navigation; a page names its own as `Page.section`.
SECTIONS = (
    ("dashboard", "", "Dashboard"),
    ("timeline", "/timeline", "Time line"),
    ("tasks", "/tasks", "Tasks"),
    ("steps", "/steps", "Steps"),
    ("tools", "/tools", "Tools"),
    ("ledger", "/ledger", "Bias ledger"),
    ("search", "/search", "Search"),
    ("notes", "/notes", "Notes"),
)
# (key, what it does) on every page; static/keys.js does it.
SHORTCUTS = (
    ("j", "the next one: episode, step, page of a list"),
    ("k", "the previous one"),
    ("u", "one level up: from an episode to its group, from a group to the tasks"),
    ("/", "to the first field of a search or a filter"),
    ("n", "write a note on this episode"),
    ("?", "this list"),
)
TEMPLATES.globals.update(query=query, sections=SECTIONS, shortcuts=SHORTCUTS)


def render(template: str, *, run: Run | None = None, status: int = 200, **values: Any) -> HTMLResponse:
    """`root` of the template: the path below which a proxy serves the viewer, or nothing; `base`: the path of the run's pages.
    `values["request"]`: what is answered. `live_s`: how often the open page asks again; 0: never."""
    root = root_of(values["request"])
    base = "" if run is None else f"{root}/runs/{in_url(run.name)}"
    values = {"live_s": 0, **values}
    page = TEMPLATES.get_template(template).render(run=run, root=root, base=base, status=status, **values)
    return HTMLResponse(page, status)
