"""Messages of tool servers as bytes: split into lines within bounds, and repaired where invalid."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import jsonrpc_message_adapter

from shared.mcp.messages import MessageLines, MessageTooLong, answered_request, mended, too_long_answer

HALF = "\\ud83d"
pieces_of_text = st.lists(
    st.sampled_from(
        [HALF, "\\ude00", HALF + "\\ude00", "\\\\", "\\n", '\\"', "a", "ud83d", "é", "😀", "\\uD83D", "\\udBfF"]
    ),
    max_size=20,
).map("".join)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 30))
def test_lines_do_not_depend_on_how_the_stream_is_split(parts: list[bytes], size: int) -> None:
    stream = b"".join(parts)
    lines = MessageLines(1000)
    found = [line for at in range(0, len(stream), size) for line in lines.feed(stream[at : at + size])]
    assert found == stream.split(b"\n")[:-1]


@given(pieces_of_text)
@settings(max_examples=300)
def test_a_repaired_message_is_parsable_and_keeps_every_valid_character(text: str) -> None:
    message = b'{"jsonrpc": "2.0", "id": 1, "result": {"t": "' + text.encode() + b'"}}'
    parsed = jsonrpc_message_adapter.validate_json(mended(message), by_name=False)
    kept = json.loads(message)["result"]["t"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert parsed.model_dump()["result"]["t"].replace("\ufffd", "") == kept.replace("\ufffd", "")
    parsed.model_dump()["result"]["t"].encode()


@given(st.binary(max_size=200))
def test_any_bytes_are_repaired_to_text(message: bytes) -> None:
    mended(message).decode()


def test_a_valid_message_is_unchanged() -> None:
    for text in ("plain", "é😀", '{"a": "\\ud83d\\ude00"}', '{"a": "\\\\ud83d"}'):
        assert mended(text.encode()) == text.encode()
    assert mended(b'{"a": "\\ud83d", "b": "\xff"}').decode() == '{"a": "\\ufffd", "b": "\ufffd"}'


@pytest.mark.parametrize(
    "message",
    [
        '{"jsonrpc": "2.0", "id": 7, "result": {"content": "X"}}',
        '{"id":7,"jsonrpc":"2.0","result":{"content":"X"}}',
        '{"result": {"content": "X", "id": 8}, "jsonrpc": "2.0", "id": 7}',
        '{"result": {"id": 8, "content": "X"}, "id": 7, "jsonrpc": "2.0"}\r',
        '{"jsonrpc": "2.0", "result": {"content": "X"}, "id": 7 }',
    ],
)
def test_an_answer_that_is_too_long_becomes_an_error_for_its_request(message: str) -> None:
    long = message.replace("X", "x" * 5000).encode()
    lines = MessageLines(4000)
    found = [line for at in range(0, len(long), 700) for line in lines.feed(long[at : at + 700])] + lines.feed(
        b"\nnext\n"
    )
    assert found == [too_long_answer(7, 4000), b"next"]
    assert lines._parts == [b""]


def test_the_error_does_not_wait_for_the_end_of_a_line_that_never_ends() -> None:
    lines = MessageLines(1000)
    assert lines.feed(b'{"jsonrpc":"2.0","id":"a-1","result":"' + b"x" * 2000) == [too_long_answer("a-1", 1000)]
    assert [line for _ in range(100) for line in lines.feed(b"x" * 1000)] == []


def test_an_over_long_notification_is_dropped_and_one_without_a_request_ends_the_session() -> None:
    lines = MessageLines(1000)
    assert lines.feed(b'{"jsonrpc":"2.0","method":"log","params":"' + b"x" * 2000 + b'","id":3}\nnext\n') == [b"next"]
    with pytest.raises(MessageTooLong, match="2000 bytes; expected at most 1000"):
        lines.feed(b"x" * 2000 + b"\n")


def test_only_a_response_yields_a_request_id() -> None:
    for head in (
        b"[1, 2]",
        b'debug {"id": 3}',
        b'{"method": "x", "id": 3}',
        b'{"jsonrpc":"2.0","id":3,"method":"x"}',
        b"",
    ):
        assert answered_request(head, head) is None


def test_reading_takes_time_linear_in_the_bytes() -> None:
    def seconds(num_pieces: int) -> float:
        lines, piece, began = MessageLines(1 << 30), b'"\\ud83d\\ude00' + b"x" * 65524, time.process_time()
        for _ in range(num_pieces):
            lines.feed(piece)
        (line,) = lines.feed(b"\n")
        mended(line)
        return time.process_time() - began

    assert seconds(1600) < 5.0  # 100 MB: 0.2 s; the SDK's reader needs a minute
