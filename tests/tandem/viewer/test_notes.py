"""Notes on episodes and saved views: written by forms of the viewer's own pages alone, bounded, shown as text."""

import pymongo
import pytest
from typer.testing import CliRunner

from shared.processes.mongod import Mongod
from shared.store import Store
from tandem import app
from tests.tandem.commands.commands import RECORD
from tests.tandem.viewer.conftest import TOKEN, Client, ClientOf
from tests.tandem.viewer.stories import Told, tell
from tests.tandem.viewer.test_dashboard import HOSTILE

OWN = {"origin": "http://127.0.0.1:8800", "sec-fetch-site": "same-origin"}


@pytest.fixture
async def episode(store: Store) -> str:
    await tell(store, lambda seq, slot: Told(), groups=1, slots=2)
    return "main:train:0:t0:0:1"


async def test_a_note_is_written_once_shown_as_text_found_and_removed(
    store: Store, viewer: Client, episode: str
) -> None:
    run = f"/runs/{store.run}"
    note = {"record": episode, "id": "n1", "text": HOSTILE + " $set Straße", "author": "Ada <b>"}
    note["text"] = note["text"].replace("\0", "")
    for _ in range(2):  # the button was pressed twice
        answer = await viewer.post(f"{run}/notes", data=note, headers=OWN)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{run}/rollouts/{episode}#notes")
    assert [(one.text, one.author) for one in await store.notes.of(episode)] == [(note["text"], "Ada <b>")]
    for path in (f"{run}/rollouts/{episode}", f"{run}/notes"):
        text = (await viewer.get(path)).text
        assert "&lt;script&gt;" in text
        assert "<script>window" not in text
        assert "Ada &lt;b&gt;" in text
    for wanted, number in (("STRASSE", 1), ("*", 1), ("other", 0)):
        found = (await viewer.get(f"{run}/search.json", params={"note": wanted})).json()["found"]
        assert [one["_id"] for one in found] == [episode] * number, wanted
    answer = await viewer.post(f"{run}/notes/remove", data={"record": episode, "id": "n1"}, headers=OWN)
    assert answer.status_code == 303
    assert await store.notes.of(episode) == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example", "sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": OWN["origin"], "sec-fetch-site": "same-site"}, 403),
        (OWN, 303),
        ({}, 303),
    ],
)
async def test_a_form_of_another_site_writes_nothing(
    store: Store, viewer: Client, episode: str, headers: dict[str, str], status: int
) -> None:
    answer = await viewer.post(f"/runs/{store.run}/notes", data={"record": episode, "text": "x"}, headers=headers)
    assert answer.status_code == status
    assert len(await store.notes.of(episode)) == (status == 303)


async def test_without_the_token_nothing_is_written(store: Store, client_of: ClientOf, episode: str) -> None:
    form = {"record": episode, "text": "x"}
    guarded = client_of(TOKEN)
    assert (await guarded.post(f"/runs/{store.run}/notes", data=form, headers=OWN)).status_code == 401
    given = {**OWN, "authorization": f"Bearer {TOKEN}"}
    assert (await guarded.post(f"/runs/{store.run}/notes", data=form, headers=given)).status_code == 303


@pytest.mark.parametrize(
    ("path", "form", "status", "message"),
    [
        ("/notes", {"record": "main:train:0:t0:0:1", "text": " "}, 400, "text is empty"),
        ("/notes", {"record": "main:train:0:t0:0:1", "text": "x" * 4001}, 400, "4,000 at most"),
        ("/notes", {"record": "main:train:0:t0:0:1", "text": "a\0b"}, 400, "character 0"),
        ("/notes", {"record": "no-such", "text": "x"}, 404, "has no episode"),
        ("/notes", {"text": "x"}, 400, "record is empty"),
        ("/views", {"name": "v", "path": "//evil.example/x"}, 400, "expected a page of the run"),
        ("/views", {"name": "v", "path": "/\\evil.example"}, 400, "expected a page of the run"),
        ("/views", {"name": "v", "path": "javascript:alert(1)"}, 400, "expected a page of the run"),
        ("/views", {"path": "/search"}, 400, "name is empty"),
        ("/views", {"name": "n" * 70_000}, 400, "more than"),
    ],
)
async def test_a_wrong_form_is_refused_with_what_was_expected(
    store: Store, viewer: Client, episode: str, path: str, form: dict[str, str], status: int, message: str
) -> None:
    answer = await viewer.post(f"/runs/{store.run}{path}", data=form, headers=OWN)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text[-600:]
    assert await store.notes.newest() == []
    assert await store.notes.views() == []


async def test_bytes_that_are_no_form_are_refused(store: Store, viewer: Client, episode: str) -> None:
    for body in (b"", b"\xff\xfe", b"record", b"a=%ff", b"&".join(b"a=1" for _ in range(50))):
        answer = await viewer.post(f"/runs/{store.run}/notes", content=body, headers=OWN)
        assert answer.status_code == 400, body


async def test_everything_else_is_read_only(store: Store, viewer: Client, episode: str) -> None:
    for method, path in (
        ("POST", ""),
        ("POST", "/search"),
        ("PUT", "/notes"),
        ("DELETE", "/notes"),
        ("POST", "/notes/x"),
    ):
        answer = await viewer.request(method, f"/runs/{store.run}{path}", headers=OWN)
        assert answer.status_code == 405, (method, path)


async def test_a_saved_view_leads_back_and_the_last_of_a_name_is_current(store: Store, viewer: Client) -> None:
    run = f"/runs/{store.run}"
    for path in ("/search?source=old", "?smooth=0.9&x=hours"):
        await viewer.post(f"{run}/views", data={"name": "fast & smooth", "path": path}, headers=OWN)
    assert f'href="{run}?smooth=0.9&amp;x=hours">fast &amp; smooth</a>' in (await viewer.get(f"{run}/notes")).text
    await viewer.post(f"{run}/views/remove", data={"name": "fast & smooth"}, headers=OWN)
    assert await store.notes.views() == []


def test_the_command_writes_lists_and_removes_notes(mongod: Mongod, played: str) -> None:
    run = CliRunner()
    database = ["--db_connection_string", mongod.connection_string]

    def tandem(*arguments: str) -> tuple[int, str]:
        done = run.invoke(app, [*arguments, *database])
        return done.exit_code, done.output

    try:
        assert tandem("note", played, RECORD, "calls it twice", "--author", "Ada")[0] == 0
        for command in (["note", played], ["note", played, RECORD], ["show", played, RECORD]):
            code, output = tandem(*command)
            assert (code, "calls it twice" in output, "Ada" in output) == (0, True, True), output
        assert tandem("note", played, "no-such", "x")[0] == 2
        assert tandem("note", played, RECORD, "x" * 5_000)[0] == 2
        assert tandem("note", played, "--remove", "no-such")[0] == 2
    finally:
        with pymongo.MongoClient(mongod.connection_string) as client:
            client[played]["notes"].delete_many({})
