"""The viewer's application: who may ask, what browsers are told, pages and their twins as data."""

import base64
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.viewer.app import RUN_PAGES
from tandem.viewer.page_request import in_url
from tandem.viewer.rendering import visible
from tests.tandem.viewer.conftest import TOKEN, Client, ClientOf

ROOT = Path(__file__).parents[3]


async def test_the_list_of_runs_names_each_with_its_state_and_step(viewer: Client, played: str) -> None:
    page = await viewer.get("/")
    assert page.status_code == 200
    assert f'<a href="/runs/{played}">{played}</a>' in page.text
    row = next(row for row in (await viewer.get("/runs.json")).json() if row["name"] == played)
    assert (row["state"], row["step"], row["policies"]) == ("played", 1, ["main"])
    assert row["records"] >= 4
    assert row["alive"] == 2


async def test_a_run_of_another_version_is_listed_with_what_is_wrong(viewer: Client, store: Store) -> None:
    await store.database["runs"].update_one({}, {"$set": {"schema_version": 1}})
    rows = {row["name"]: row for row in (await viewer.get("/runs.json")).json()}
    assert rows[store.run]["state"] == "unreadable"
    assert "schema 1" in rows[store.run]["reason"]
    page = await viewer.get(f"/runs/{store.run}")
    assert page.status_code == 404
    assert "schema 1" in page.text


@pytest.mark.parametrize("name", ["nope", "admin", "..%2f..%2fetc", "%00", "a b"])
async def test_a_run_that_is_not_there_is_an_error_and_is_not_created(viewer: Client, name: str) -> None:
    for path in (f"/runs/{name}", f"/runs/{name}.json"):
        answer = await viewer.get(path)
        assert answer.status_code in (400, 404), path
    assert "nope" not in {row["name"] for row in (await viewer.get("/runs.json")).json()}


WHOLE = [page for page in RUN_PAGES if page.template and "{" not in page.path]  # without a template it is JSON itself


@pytest.mark.parametrize("page", WHOLE, ids=lambda page: page.template)
async def test_every_page_has_a_twin_as_json(viewer: Client, played: str, page: object) -> None:
    path = f"/runs/{played}{page.path}"  # type: ignore[attr-defined]  # pytest's parameter
    html, data = await viewer.get(path), await viewer.get(f"{path}.json")
    assert (html.status_code, data.status_code) == (200, 200), html.text + data.text
    assert data.json()
    assert f'href="{path}.json"' in html.text


async def test_no_page_has_an_inline_script_or_style(viewer: Client, played: str) -> None:
    for path in ("/", *(f"/runs/{played}{page.path}" for page in RUN_PAGES if "{" not in page.path)):
        text = (await viewer.get(path)).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text), path
        for script in re.findall(r"<script\b[^>]*>", text):
            assert re.search(r'src="/static/|type="application/json"', script), (path, script)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8800", "", "[::1", "127.0.0.1@evil.example"])
async def test_a_page_with_another_name_may_not_ask(client_of: ClientOf, host: str) -> None:
    answer = await client_of().get("/", headers={"host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8800", "localhost", "[::1]:9000", "LOCALHOST:1"])
async def test_this_machine_may_ask(client_of: ClientOf, host: str) -> None:
    assert (await client_of().get("/", headers={"host": host})).status_code == 200


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Digest {TOKEN}", 401),
        ("Basic !!!", 401),
        ("Basic /w==", 401),
        (basic("ann", "wrong"), 401),
        (basic(TOKEN, ""), 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (basic("ann", TOKEN), 200),
    ],
)
async def test_with_a_token_every_request_needs_it(client_of: ClientOf, given: str | None, status: int) -> None:
    client = client_of(TOKEN, host="viewer.example")
    for path in ("/", "/runs.json", "/static/style.css", "/nope"):
        answer = await client.get(path, headers={} if given is None else {"authorization": given})
        assert answer.status_code == (404 if status == 200 and path == "/nope" else status), path
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_the_viewer_only_reads(viewer: Client, played: str, method: str) -> None:
    assert (await viewer.request(method, f"/runs/{played}")).status_code == 405


async def test_every_answer_forbids_foreign_content_and_guessing(client_of: ClientOf, played: str) -> None:
    cases = [(client_of(), path) for path in ("/", f"/runs/{played}", "/runs/nope", "/nope", "/static/style.css")]
    for client, path in [*cases, (client_of(TOKEN), "/"), (client_of(host="evil.example"), "/")]:
        headers = (await client.get(path)).headers
        assert headers["content-security-policy"].startswith("default-src 'self';"), path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/"]
)
async def test_static_files_are_those_of_their_folder_alone(viewer: Client, path: str) -> None:
    assert (await viewer.get(path)).status_code == 404


def test_an_id_in_a_url_is_that_id_again() -> None:
    from urllib.parse import unquote

    for found in ("main:train:0:t1", "openai/gsm8k?.json", "a b#c%2F%252F", "../..", "日本 ‮x", "x.json", "100%"):
        once = unquote(in_url(found))
        assert "/" not in once
        assert not once.endswith(".json")
        assert unquote(once) == found
    assert in_url("main:train:0:arith-00007:3:1") == "main:train:0:arith-00007:3:1"


def test_characters_that_hide_or_turn_text_are_shown_as_codes() -> None:
    assert visible("a\u202eb\x1b[2J\x00\u200bc\n\td") == "a⟨U+202E⟩b⟨U+001B⟩[2J⟨U+0000⟩⟨U+200B⟩c\n\td"


def started(mongod: Mongod, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tandem", "view", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"DB_CONNECTION_STRING": mongod.connection_string} | environment,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_tandem_view_serves_until_a_signal(mongod: Mongod, played: str, stop: signal.Signals) -> None:
    process = started(mongod, played)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/runs/{played}", url)
        assert httpx.get(url, timeout=60).status_code == 200
        process.send_signal(stop)
        assert process.wait(60) == 0
    finally:
        process.kill()
        _, errors = process.communicate()
    assert errors == ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["nope"], "no run 'nope'"), (["--host", "0.0.0.0"], "expected a token in TANDEM_VIEW_TOKEN")],
)
def test_tandem_view_refuses_what_it_cannot_show_or_must_not(mongod: Mongod, arguments: list[str], said: str) -> None:
    process = started(mongod, *arguments)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert said in errors


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheel_has_the_templates_the_static_files_and_their_licence(tmp_path: Path) -> None:
    build = "from setuptools import build_meta; import sys; print(build_meta.build_wheel(sys.argv[1]))"
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "shared", "scripts"):
        (source / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    names = zipfile.ZipFile(tmp_path / done.stdout.split()[-1]).namelist()
    here = ROOT / "scripts" / "tandem" / "viewer"
    wanted = [path for folder in ("templates", "static") for path in (here / folder).rglob("*") if path.is_file()]
    assert {path.relative_to(ROOT / "scripts").as_posix() for path in wanted} <= set(names)
    assert "tandem/viewer/static/vendor/uPlot.LICENSE.txt" in names
