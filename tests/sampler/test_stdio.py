"""A stdio server may write anything to its stdout. A session ends only if no answer can come any more."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from sampler.core.errors import ToolServerDied, ToolServerUnavailable
from sampler.core.tools import ToolLimits, ToolServer, ToolSession
from tests.sampler.boxes import stdio

LIMITS = ToolLimits(call_s=60, max_message_bytes=100_000)


def in_base64(data: bytes | str) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def text_answer(text: str = "TEXT") -> bytes:
    whole = {"jsonrpc": "2.0", "id": "@ID@", "result": {"content": [{"type": "text", "text": text}]}}
    return json.dumps(whole).replace('"@ID@"', "@ID@").encode() + b"\n"


async def said(session: ToolSession, *pieces: bytes) -> str:
    return (await session.call("say", {"pieces": [in_base64(piece) for piece in pieces]})).text


async def test_half_surrogate_pairs_and_invalid_utf8_are_replaced() -> None:
    async with ToolSession([stdio("raw", "raw.py")], limits=LIMITS) as session:
        assert await said(
            session, text_answer().replace(b"TEXT", b"cut \\ud83d, whole \\ud83d\\ude00, raw \xff\xfe")
        ) == ("cut \ufffd, whole 😀, raw \ufffd\ufffd")
        assert await said(session, b"\xff\xfe noise\n", text_answer("on")) == "on"


async def test_lines_that_are_not_messages_are_skipped() -> None:
    noise = [
        b"starting...\n",
        b"\n\n",
        b"[]\n",
        b'{"id": {}}\n',
        b'{"jsonrpc": "2.0"}\n',
        b"[" * 5000 + b"\n",
        b"\0\n",
        b"NaN\r\n",
    ]
    async with ToolSession([stdio("raw", "raw.py")], limits=LIMITS) as session:
        for piece in noise:
            assert await said(session, piece, text_answer("on")) == "on"
        before, after = text_answer("bytewise").split(b"@ID@")
        bytewise = [*(bytes([byte]) for byte in before), b"@ID@", *(bytes([byte]) for byte in after)]
        assert await said(session, *bytewise) == "bytewise"


@pytest.mark.parametrize(
    "answer",
    [
        b'{"jsonrpc": "2.0", "id": @ID@, "result": "a text"}\n',
        b'{"jsonrpc": "2.0", "id": @ID@, "error": 17}\n',
        b'{"jsonrpc": "2.0", "id": @ID@}\n',
        b'{"jsonrpc": "2.0", "id": @ID@, "result": {"content": ]}}\n',
        b'{"jsonrpc": "2.0", "id": @ID@, "result": {"content": ' + b"[" * 5000 + b"\n",
        b'{"jsonrpc": "2.0", "id": @ID@, "result": {}}\n',
    ],
)
async def test_an_answer_that_breaks_the_protocol_fails_its_call_at_once_with_the_reason(answer: bytes) -> None:
    async with ToolSession([stdio("raw", "raw.py")], limits=LIMITS) as session:
        with pytest.raises(ToolServerDied, match=r"answer is not a JSON-RPC message|answer breaks the protocol"):
            await said(session, answer)
        assert await said(session, text_answer("on")) == "on"


async def test_an_answer_above_the_bound_becomes_an_error_for_the_model_and_the_session_continues() -> None:
    before, after = text_answer().split(b"TEXT")
    arguments: dict[str, Any] = {
        "before": in_base64(before),
        "piece": in_base64(b"x" * 10_000),
        "after": in_base64(after),
    }
    async with ToolSession([stdio("raw", "raw.py")], limits=LIMITS) as session:
        result = await session.call("repeat", {**arguments, "times": 9})
        assert len(result.whole) == 90_000
        result = await session.call("repeat", {**arguments, "times": 11})
        assert result.is_error
        assert "more than 100000 bytes" in result.text
        endless = {**arguments, "after": in_base64("no line break"), "times": 20}
        assert "more than 100000 bytes" in (await session.call("repeat", endless)).text
        await session.call("say", {"pieces": [in_base64(b"\n" + text_answer())]})
        with pytest.raises(ToolServerDied, match=r"a message of \d+ bytes; expected at most 100000"):
            await session.call("repeat", {**arguments, "before": in_base64("x"), "after": in_base64("\n"), "times": 11})


async def test_fifty_megabytes_take_a_fraction_of_what_the_sdk_needs_for_them() -> None:
    before, after = text_answer().split(b"TEXT")
    arguments = {
        "before": in_base64(before),
        "piece": in_base64(b"x" * 1_000_000),
        "after": in_base64(after),
        "times": 50,
    }
    for max_bytes, found in ((100_000_000, 50_000_000), (16_000_000, 0)):
        async with ToolSession([stdio("raw", "raw.py")], limits=ToolLimits(max_message_bytes=max_bytes)) as session:
            began = time.process_time()
            result = await session.call("repeat", arguments)
            assert time.process_time() - began < 6.0  # 0.4 s; the SDK's reader 18 s
            assert (result.is_error, len(result.whole)) == ((False, found) if found else (True, len(result.text)))


async def test_the_error_for_an_exited_server_has_its_status_and_last_stderr_but_no_secret(tmp_path: Path) -> None:
    async with ToolSession([stdio("raw", "raw.py")], limits=LIMITS) as session:
        with pytest.raises(
            ToolServerDied, match=r"its process ended with status 7; last on its stderr: out of memory$"
        ):
            await session.call("die", {"status": 7, "last": "out of memory\n"})
        with pytest.raises(ToolServerDied, match="status 7"):
            await session.call("say", {"pieces": []})
    raw = stdio("raw", "raw.py")
    guarded = ToolServer(name="raw", command=raw.command, args=raw.args, env={"KEY": "s3cret-value"})
    async with ToolSession([guarded], limits=LIMITS) as session:
        with pytest.raises(ToolServerDied, match="bad key …") as caught:
            await session.call("die", {"status": 1, "last": "bad key s3cret-value"})
        assert "s3cret" not in str(caught.value)
    script = tmp_path / "broken.py"
    script.write_text("import no_such_module\n")
    with pytest.raises(
        ToolServerUnavailable, match=r"status 1; last on its stderr: .*No module named 'no_such_module'"
    ):
        await ToolSession([ToolServer(name="broken", command=raw.command, args=(str(script),))], limits=LIMITS).open()
