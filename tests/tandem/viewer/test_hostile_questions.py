"""What is asked of the viewer with bad intent or by mistake is answered with what is wrong, and changes nothing."""

import pytest

from tests.tandem.viewer.conftest import Client

LARGE = "9" * 30


@pytest.mark.parametrize(
    "question",
    [
        f"/search?step={LARGE}",
        f"/search?version={LARGE}",
        f"/search?step=-{LARGE}",
        "/search?step=9223372036854775808",
        f"/search/export/jsonl?step={LARGE}",
        "/search?text=%00",
        "/search?tool=%00",
        "/timeline?end=0001-01-01",
        "/timeline?end=9999-12-31T23:59:59",
        "/timeline?end=0001-01-01T00:00:00%2B23:59",
        "/timeline?end=9999-12-31T23:59:59-23:59",
        "/timeline?end=%00",
    ],
)
async def test_a_value_that_no_document_can_have_is_told(viewer: Client, played: str, question: str) -> None:
    path, _, asked = question.partition("?")
    for twin in ("",) if "export" in path else ("", ".json"):
        answer = await viewer.get(f"/runs/{played}{path}{twin}?{asked}")
        assert answer.status_code == 400, answer.text
        assert "expected" in answer.text


@pytest.mark.parametrize("end", ["2026-01-31T14:00:00+02:00", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00"])
async def test_the_time_line_ends_at_the_given_instant(viewer: Client, played: str, end: str) -> None:
    found = (await viewer.get(f"/runs/{played}/timeline.json", params={"end": end})).json()
    assert found["end"] == "2026-01-31T12:00:00.000Z"
