"""What a page shows and what its copied query shows are the same documents."""

import json
import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.store import Store
from shared.store.views.query import Query, shell_text
from tests.shared.episodes import whole_run

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def pasted(text: str) -> Any:
    """The value of a text for mongosh, as mongosh would read it."""
    dates = re.sub(r'ISODate\("([^"]+)Z"\)', r'{"$date": "\1"}', text)
    return json.loads(dates, object_hook=lambda d: datetime.fromisoformat(d["$date"]) if set(d) == {"$date"} else d)


@given(JSON_VALUES)
def test_any_value_comes_back_from_its_text_as_it_was(value: Any) -> None:
    text = shell_text(value)
    assert json.loads(text) == value
    assert text.isascii(), "no character of a document can end the line or turn its direction"


def test_a_time_is_an_iso_date_in_utc() -> None:
    assert shell_text({"$gte": datetime(2026, 1, 2, 3, 4, 5)}) == '{"$gte": ISODate("2026-01-02T03:04:05.000Z")}'


def test_a_value_without_a_text_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes has no text"):
        shell_text({"a": b"x"})


async def test_a_copied_filter_and_a_copied_pipeline_find_what_the_page_shows(store: Store) -> None:
    await whole_run(store)
    found = Query("", "records", {"task": "main:train:0:t0"}, {"score": 1}, sort=[("_id", -1)], limit=1)
    match = re.fullmatch(
        r'db\.getCollection\("records"\)\.find\((.*), (\{.*?\})\)\.sort\((.*)\)\.limit\(1\)', found.mongosh
    )
    assert match is not None, found.mongosh
    where, fields, sort = map(pasted, match.groups())
    again = await store.database["records"].find(where, fields).sort(list(sort.items())).limit(1).to_list()
    assert again == await found.run(store.database) == [{"_id": "main:train:0:t0:1:1", "score": 1.0}]
    stages = [{"$match": {"policy": "main"}}, {"$count": "n"}]
    counted = Query("", "record_data", pipeline=stages)
    assert await counted.run(store.database) == [{"n": 4}]
    assert pasted(counted.compass) == stages
