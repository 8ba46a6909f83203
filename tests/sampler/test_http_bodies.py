"""HTTP bodies of a tool server: bounds, also after decompression; and the origin of errors."""

import gzip
import json
import resource
import time
import zlib

import pytest

from sampler.core.errors import ToolServerDied
from sampler.core.tools import ToolLimits, ToolSession
from tests.sampler.raw_http import EVENTS, Answer, error_answer, raw_http, text_answer

LIMITS = ToolLimits(call_s=60, max_message_bytes=100_000, max_result_chars=200_000)
LONG = text_answer("x" * 200_000)


def event(data: bytes) -> bytes:
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"


READ = {
    "plain": Answer([text_answer("read")]),
    "gzip": Answer([gzip.compress(text_answer("read").replace(b"@ID@", b"3"))], fields={"Content-Encoding": "gzip"}),
    "deflate": Answer(
        [zlib.compress(text_answer("read").replace(b"@ID@", b"3"))], fields={"Content-Encoding": "deflate"}
    ),
    "events": Answer([b": hello\n\n", event(text_answer("read"))], EVENTS),
    "in pieces": Answer([b"data: ", *text_answer("read").partition(b"@ID@"), b"\n", b"\n"], EVENTS),
}


@pytest.mark.parametrize("kind", READ)
async def test_an_answer_within_the_bounds_is_read_in_every_encoding(kind: str) -> None:
    async with raw_http(READ) as server, ToolSession([server], limits=LIMITS) as session:
        assert (await session.call("say", {"kind": kind})).text == "read"


HALF = text_answer("TEXT").replace(b"TEXT", b"a \\ud83d b \xff")


@pytest.mark.parametrize("answer", [Answer([HALF]), Answer([event(HALF)], EVENTS)], ids=["json", "events"])
async def test_half_surrogate_pairs_and_invalid_utf8_are_replaced(answer: Answer) -> None:
    async with raw_http({"half": answer}) as server, ToolSession([server], limits=LIMITS) as session:
        assert (await session.call("say", {"kind": "half"})).text == "a \ufffd b \ufffd"


TOO_LONG = {
    "json": Answer([LONG]),
    "gzip": Answer([gzip.compress(b" " * 300_000_000, 1)], fields={"Content-Encoding": "gzip"}),
    "events": Answer([event(LONG)], EVENTS),
    "id at the end": Answer([event(json.dumps({"result": {"x": "x" * 200_000}}).encode())], EVENTS),
    "an event without end": Answer([b"data: {", *[b"x" * 10_000] * 100], EVENTS),
}


async def test_an_answer_above_the_bound_becomes_an_error_for_the_model_and_costs_no_memory() -> None:
    async with raw_http(TOO_LONG) as server, ToolSession([server], limits=LIMITS) as session:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for kind in TOO_LONG:
            result = await session.call("say", {"kind": kind})
            assert (result.is_error, "more than 100000 bytes" in result.text) == (True, True), kind
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KB"


SAID = {
    "refused": Answer([error_answer(-32600, "no such move")]),
    "unknown": Answer([error_answer(-32601, "no such tool")]),
    "server's own": Answer([error_answer(-32000, "out of range")]),
    "last of its own": Answer([event(error_answer(-32099, "out of range"))], EVENTS),
    "arguments": Answer([error_answer(-32602, "bad arguments")], status="400 Bad Request"),
    "of the tool": Answer([error_answer(17, "seventeen")]),
}


@pytest.mark.parametrize("kind", SAID)
async def test_a_json_rpc_error_is_the_tools_answer_while_the_session_lives(kind: str) -> None:
    async with raw_http(SAID) as server, ToolSession([server], limits=LIMITS) as session:
        result = await session.call("say", {"kind": kind})
        assert result.is_error
        assert (
            json.loads(SAID[kind].pieces[0].split(b"data: ")[-1].replace(b"@ID@", b"1"))["error"]["message"]
            in result.text
        )


FAILED = {
    "session lost": (Answer([error_answer(-32001, "Session not found")], ping="404 Not Found"), "Session not found"),
    "lost, with a status": (
        Answer([error_answer(-32001, "no session s1")], status="404 Not Found"),
        "no session s1.*HTTP 404",
    ),
    "overloaded": (
        Answer([b"try\r\n later"], "text/plain", "503 Service Unavailable"),
        "HTTP 503 Service Unavailable: try later",
    ),
    "a page": (Answer([b"<html>"], "text/html"), "Unexpected content type: text/html"),
    "nothing to come": (Answer([], status="202 Accepted"), "202 Accepted"),
    "elsewhere": (Answer([], status="302 Found", fields={"Location": "http://127.0.0.1:9/"}), "not followed"),
    "no answer": (Answer([b": nothing\n\n"], EVENTS), "ended without a response"),
    "no json": (Answer([b"{"]), "Failed to parse JSON response"),
    "no gzip": (Answer([b"x"], fields={"Content-Encoding": "gzip"}), "its body is not valid gzip"),
    "another encoding": (Answer([b"x"], fields={"Content-Encoding": "br"}), "encoded as 'br'; expected gzip, deflate"),
}


@pytest.mark.parametrize("kind", FAILED)
async def test_an_error_that_is_not_the_servers_own_answer_is_a_failure_with_its_cause(kind: str) -> None:
    answer, words = FAILED[kind]
    async with raw_http({kind: answer}) as server, ToolSession([server], limits=LIMITS) as session:
        with pytest.raises(ToolServerDied, match=words):
            await session.call("say", {"kind": kind})


async def test_three_hundred_megabytes_in_a_gzip_take_no_time() -> None:
    async with raw_http(TOO_LONG) as server, ToolSession([server], limits=LIMITS) as session:
        began = time.process_time()
        await session.call("say", {"kind": "gzip"})
        assert time.process_time() - began < 1.0
