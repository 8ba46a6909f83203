"""Behind a reverse proxy, below a path of its server, every link, form, file and poll of the viewer stays below that path."""

import re
from html import unescape

import httpx
import pytest
from typer.testing import CliRunner

from tandem import app
from tandem.viewer.sub_path import is_sub_path
from tests.tandem.viewer.conftest import Client

PREFIX = "/lab/tandem"
ADDRESSES = re.compile(r'(?:href|src|action|data-source|data-live|data-open|data-base)="([^"#][^"]*)"')
MOST_PAGES = 45
NOT_READ = ("/notes/remove", "/views", "/views/remove", "/steps/main/")  # forms, and what a chart puts a step behind


@pytest.mark.parametrize("strips", [True, False])
async def test_every_link_of_every_page_stays_below_the_proxys_path(viewer: Client, played: str, strips: bool) -> None:
    """`strips`: the proxy passes requests without its path."""

    async def asked(path: str) -> httpx.Response:
        assert path.startswith(f"{PREFIX}/"), path
        inner = path.removeprefix(PREFIX) if strips else path
        return await viewer.get(inner, headers={"x-forwarded-prefix": PREFIX})

    waiting, seen = [f"{PREFIX}/runs/{played}", f"{PREFIX}/"], set[str]()
    while waiting and len(seen) < MOST_PAGES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        answer = await asked(path)
        if answer.status_code in (301, 303, 307):
            assert answer.headers["location"].startswith((PREFIX, f"http://127.0.0.1:8800{PREFIX}"))
            continue
        assert answer.status_code == (await viewer.get(path.removeprefix(PREFIX))).status_code, path
        if "text/html" not in answer.headers["content-type"]:
            continue
        found = [unescape(address) for address in ADDRESSES.findall(answer.text)]
        assert found
        for address in found:
            assert address.startswith((f"{PREFIX}/", "?")), f"{address} in {path}"
            if address.startswith(PREFIX) and not address.endswith(NOT_READ):
                target = address.partition("#")[0]
                waiting.insert(len(waiting) if "?" in target else 0, target)
    assert {f"{PREFIX}/static/live.js", f"{PREFIX}/runs/{played}/tasks"} <= seen


async def test_a_form_goes_back_below_the_path(viewer: Client, played: str) -> None:
    for path in (f"/runs/{played}/views", f"{PREFIX}/runs/{played}/views"):
        given = {"x-forwarded-prefix": PREFIX, "content-type": "application/x-www-form-urlencoded"}
        answer = await viewer.post(path, content="name=mine&path=/tasks", headers=given)
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].startswith(f"{PREFIX}/runs/{played}")


@pytest.mark.parametrize(
    "given", ["//evil.example", "/a/../b", "/a b", "/<script>", "evil", "/" + "a" * 300, "https://evil.example/", "/."]
)
async def test_a_header_that_is_no_path_changes_nothing(viewer: Client, played: str, given: str) -> None:
    assert not is_sub_path(given)
    page = await viewer.get("/", headers={"x-forwarded-prefix": given})
    assert page.status_code == 200
    assert f'href="/runs/{played}"' in page.text
    assert "evil" not in page.text


def test_a_setting_that_is_no_path_is_refused() -> None:
    result = CliRunner().invoke(
        app, ["view", "--root_path", "//evil", "--db_connection_string", "mongodb://127.0.0.1:1/"]
    )
    assert (result.exit_code, "expected a path such as /tandem" in result.stderr) == (2, True)
