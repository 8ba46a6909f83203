"""Sessions and episode ids: what a server of each revision knows an episode by. Whole revisions: test_conformance."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from sampler.core.errors import ToolFailure
from sampler.core.tools import ToolServer, ToolSession, parse_servers
from shared.errors import ConfigError
from shared.mcp.auth import ClientCredentials
from tests.sampler.boxes import Box, start_box, stdio

CREDENTIALS = {"type": "client_credentials", "issuer": "https://auth", "client_id": "me", "client_secret": "${SECRET}"}


async def bump(session: ToolSession) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await session.call("bump", {})).text)
    return answer


async def test_a_server_without_sessions_keeps_the_state_of_each_episode_by_its_id(shared_box: Box) -> None:
    server = replace(shared_box.server, revision="2026-07-28")
    async with ToolSession([server], episode="run/a") as a, ToolSession([server], episode="run/b") as b:
        answers = [await bump(session) for session in (a, b, a)]
    assert [answer["n"] for answer in answers] == [1, 1, 2]
    assert [answer["episode"] for answer in answers] == ["run/a", "run/b", "run/a"]
    assert {answer["revision"] for answer in answers} == {"2026-07-28"}
    async with ToolSession([server]) as nameless, ToolSession([server]) as other:
        ids = {(await bump(session))["episode"] for session in (nameless, other)}
    assert len(ids) == 2
    assert None not in ids


async def test_a_server_with_both_revisions_uses_sessions(shared_box: Box) -> None:
    for server in (shared_box.server, replace(shared_box.server, revision="handshake"), stdio("box")):
        async with ToolSession([server], episode="run/c") as session:
            answer = await bump(session)
        assert (answer["n"], answer["episode"], answer["revision"]) == (1, None, "2025-11-25")


async def test_the_new_revision_works_over_stdio() -> None:
    async with ToolSession([replace(stdio("box"), revision="2026-07-28")], episode="run/d") as session:
        answer = await bump(session)
    assert (answer["n"], answer["episode"], answer["revision"]) == (1, "run/d", "2026-07-28")


@pytest.fixture
def guarded() -> Iterator[Box]:
    box = start_box("--oauth")
    yield box
    box.kill()


def with_secret(box: Box, secret: str) -> ToolServer:
    auth = ClientCredentials(f"http://127.0.0.1:{box.port}", "me", secret)
    return replace(box.server, auth=auth)


async def num_tokens(box: Box) -> int:
    async with httpx.AsyncClient() as http:
        return int((await http.get(f"http://127.0.0.1:{box.port}/tokens")).json())


async def test_sessions_of_a_process_share_one_token_and_renew_it_when_refused(guarded: Box) -> None:
    sessions = [ToolSession([with_secret(guarded, "s3cret-word")]) for _ in range(4)]
    await asyncio.gather(*(session.open() for session in sessions))
    assert [(await bump(session))["n"] for session in sessions] == [1, 1, 1, 1]
    assert await num_tokens(guarded) == 1
    async with httpx.AsyncClient() as http:
        await http.get(f"http://127.0.0.1:{guarded.port}/revoke")
    assert [answer["n"] for answer in await asyncio.gather(*map(bump, sessions))] == [2, 2, 2, 2]
    assert await num_tokens(guarded) == 2
    await asyncio.gather(*(session.close() for session in sessions))


async def test_a_wrong_secret_is_named_as_the_cause_and_not_shown(guarded: Box) -> None:
    with pytest.raises(ToolFailure, match="invalid_client") as caught:
        await ToolSession([with_secret(guarded, "another-word")]).open()
    assert "another-word" not in str(caught.value)


def test_client_credentials_are_read_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    (server,) = parse_servers({"mcpServers": {"s": {"url": "http://h/mcp", "auth": CREDENTIALS | {"scope": "tools"}}}})
    assert server.auth == ClientCredentials("https://auth", "me", "s3cret", scope="tools")
    assert "s3cret" not in repr(server)
    assert server.quoted("no s3cret here") == "no … here"


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        ("Bearer x", "auth: expected"),
        ({"type": "password"}, 'auth: expected {"type": "client_credentials"'),
        (
            {"type": "client_credentials", "client_id": "me", "client_secret": "x"},
            "issuer is missing; the credentials are sent",
        ),
        (CREDENTIALS | {"private_key": "x"}, 'exactly one of "client_secret" and "private_key"'),
        (CREDENTIALS | {"secret": "x"}, "unknown key 'secret'"),
        (CREDENTIALS | {"method": "none"}, "method is 'none'; expected one of client_secret_basic, client_secret_post"),
        (CREDENTIALS | {"issuer": "auth"}, "issuer: url is 'auth'; expected http"),
    ],
)
def test_the_error_for_malformed_credentials_names_the_problem(
    auth: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    with pytest.raises(ConfigError, match=words):
        parse_servers({"mcpServers": {"s": {"url": "http://h/mcp", "auth": auth}}})


def test_credentials_and_a_header_or_a_manager_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    for entry, words in (
        ({"url": "http://h/mcp", "headers": {"authorization": "Bearer x"}}, "Authorization header are both given"),
        ({"url": "http://h/mcpapi"}, "auth is for MCP over HTTP"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_servers({"mcpServers": {"s": entry | {"auth": CREDENTIALS}}})
    with pytest.raises(ConfigError, match="revision is '2025'; expected one of auto, handshake, 2026-07-28"):
        parse_servers({"mcpServers": {"s": {"url": "http://h/mcp", "revision": "2025"}}})
