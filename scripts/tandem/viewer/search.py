"""The page of the search: episodes by filters, each combination a link."""

from dataclasses import dataclass, fields
from typing import Any

from shared.documents.states import RecordStatus, Termination
from shared.episodes.images import EpisodeImages, is_digest
from shared.names import SPLITS
from shared.store.views.query import Document, Query
from shared.store.views.rollouts import LOOKED_THROUGH, MOST_FOUND, MOST_PAGES, RolloutFilter, search
from tandem.viewer.images import known_images
from tandem.viewer.page_request import BadQuestion, PageRequest, check_split

LONGEST = 300  # characters of a filter
LARGEST = 2**63 - 1  # that a document can hold
NUMBERS = {"step": int, "version": int, "min_score": float, "max_score": float}


@dataclass(frozen=True, slots=True)
class SearchView:
    wanted: dict[str, Any]  # as in the URL, without the empty ones
    found: list[Document]
    page: int
    has_more: bool
    reads_turns: bool
    looked_through: int
    splits: tuple[str, ...]
    statuses: list[str]
    terminations: list[str]
    queries: list[Query]


async def search_page(request: PageRequest) -> SearchView:
    chosen = chosen_filter(request)
    page = request.number("page", 0, most=MOST_PAGES)
    noted = await noted_records(request, chosen)
    documents, queries = await search(request.store.database, chosen, page, noted=noted)
    documents, images_queries = await _with_images(request, documents[: MOST_FOUND + 1])
    values = {field.name: getattr(chosen, field.name) for field in fields(RolloutFilter)}
    return SearchView(
        wanted={name: value for name, value in values.items() if value not in (None, False)},
        found=documents[:MOST_FOUND],
        page=page,
        has_more=len(documents) > MOST_FOUND and page < MOST_PAGES,
        reads_turns=chosen.reads_turns,
        looked_through=LOOKED_THROUGH,
        splits=SPLITS,
        statuses=[status.value for status in RecordStatus],
        terminations=[termination.value for termination in Termination],
        queries=[*queries, *images_queries],
    )


async def _with_images(request: PageRequest, documents: list[Document]) -> tuple[list[Document], list[Query]]:
    """Of turns that were found, the images that their prompts added."""
    known = EpisodeImages(tokens={one["sha256"]: one["count"] for d in documents for one in d.get("images", ())})
    if not known.tokens:
        return [{**document, "images": []} for document in documents], []
    images, queries = await known_images(request.store, known)
    shown = [
        [images.image(one["sha256"]) for one in d.get("images", ()) if is_digest(one["sha256"])] for d in documents
    ]
    return [{**document, "images": own} for document, own in zip(documents, shown, strict=True)], queries


async def noted_records(request: PageRequest, chosen: RolloutFilter) -> list[str] | None:
    """Episodes with such a note; None: notes do not matter."""
    return None if chosen.note is None else await request.store.notes.records_with(chosen.note.strip("*"))


def chosen_filter(request: PageRequest) -> RolloutFilter:
    """Raises BadQuestion."""
    given: dict[str, Any] = {}
    for name in (f.name for f in fields(RolloutFilter)):
        text = request.text(name)
        if text is None:
            continue
        if len(text) > LONGEST:
            raise BadQuestion(f"{name} has {len(text)} characters; expected {LONGEST} at most")
        given[name] = _value(name, text)
    if "split" in given:
        check_split(given["split"])
    return RolloutFilter(**given)


def _value(name: str, text: str) -> Any:
    if name == "tool_error":
        return text.lower() in ("1", "true", "on", "yes")
    if name == "image" and not is_digest(text):
        raise BadQuestion(f"image is {text[:80]!r}; expected the 64 hexadecimal digits of a SHA-256, in lower case")
    if name not in NUMBERS:
        if "\0" in text:  # no text of a search may hold it, says the server
            raise BadQuestion(f"{name} is {text[:80]!r}; expected a text without the character 0")
        return text
    try:
        value = NUMBERS[name](text)
    except ValueError as exc:
        raise BadQuestion(f"{name} is {text[:80]!r}; expected a number") from exc
    if isinstance(value, int) and abs(value) > LARGEST:
        raise BadQuestion(f"{name} is {text[:80]!r}; expected a number of at most {LARGEST}")
    return value
