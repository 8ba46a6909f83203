"""The model's text of an answer: bounded in the template's tokens and in characters, cut visibly, and completely stored."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    JSONRPCResponse,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from sampler.core.tools import TokenOffsets, ToolLimits
from sampler.core.tools.incoming import plain
from sampler.core.tools.results import bounded, raw_text, to_result, with_summary
from tests.sampler.chats import ADDED, SPECIAL, chat

TEMPLATE = chat("qwen")
OFFSETS = TokenOffsets(TEMPLATE)
texts = st.lists(
    st.one_of(
        st.text(max_size=40), st.sampled_from([*SPECIAL, *ADDED, "the answer is ", "\n\n", "日本語", "👩‍🚀", "é"])
    ),
    max_size=60,
).map("".join)


def num_tokens(text: str) -> int:
    """As the template encodes a tool's result that stands alone."""
    marked = TEMPLATE.control.tokens.sub("\U000f0000\\g<0>\U000f0001", text.translate({0xF0000: None, 0xF0001: None}))
    return len(TEMPLATE.encode_marked(marked))


@given(texts)
@settings(deadline=None, max_examples=150)
def test_offsets_are_those_of_the_tokens_that_the_template_makes(text: str) -> None:
    text = text.translate({0xF0000: None, 0xF0001: None})
    offsets = OFFSETS(text)
    assert len(offsets) == num_tokens(text)
    assert [end for _, end in offsets] == sorted(end for _, end in offsets)
    assert not offsets or (offsets[0][0] == 0 and offsets[-1][1] == len(text))


@given(texts, st.integers(1, 120), st.integers(0, 400))
@settings(deadline=None, max_examples=300)
def test_a_result_is_never_above_its_bounds_and_keeps_both_ends(text: str, max_tokens: int, max_chars: int) -> None:
    kept, cut_chars = bounded(text, ToolLimits(max_result_tokens=max_tokens, max_result_chars=max_chars), OFFSETS)
    assert len(kept) <= max_chars
    assert len(OFFSETS(kept)) <= max_tokens
    marker = f"\n[… {cut_chars} characters left out …]\n"
    if cut_chars == 0:
        assert kept == text
    elif marker in kept:
        head, _, tail = kept.partition(marker)
        assert text.startswith(head)
        assert text.endswith(tail)
        assert tail
        assert len(head) + len(tail) + cut_chars == len(text)
    else:  # no room for a marker
        assert min(max_chars, max_tokens) < 200
        assert text.startswith(kept)
        assert len(kept) + cut_chars == len(text)


def test_a_text_with_dense_tokens_at_its_end_is_cut_only_once() -> None:
    text = " " * 4000 + "é" * 4000
    limits = ToolLimits(max_result_tokens=400, max_result_chars=6000)
    kept, cut_chars = bounded(text, limits, OFFSETS)
    assert kept.count("left out") == 1
    head, _, tail = kept.partition(f"\n[… {cut_chars} characters left out …]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) + cut_chars == len(text)
    assert 350 < len(OFFSETS(kept)) <= 400


@pytest.mark.parametrize("max_chars", [0, 1, 30, 60, 100])
def test_a_character_bound_needs_no_tokenizer(max_chars: int) -> None:
    kept, cut_chars = bounded("x" * 5000, ToolLimits(max_result_chars=max_chars))
    assert len(kept) <= max_chars
    assert cut_chars >= 5000 - max_chars


def test_a_long_result_is_cut_to_the_allowed_tokens() -> None:
    words = " ".join(f"word{n}" for n in range(5000))
    kept, cut_chars = bounded(words, ToolLimits(max_result_tokens=200), OFFSETS)
    assert 180 <= num_tokens(kept) <= 200
    assert kept.startswith("word0 word1")
    assert kept.endswith("word4999")
    assert f"{cut_chars} characters left out" in kept


def answer(*blocks: object, **fields: object) -> CallToolResult:
    return CallToolResult(content=list(blocks), **fields)  # type: ignore[arg-type]  # blocks of every kind


def text_of(*blocks: object, **fields: object) -> str:
    return to_result(answer(*blocks, **fields), 0.0, ToolLimits()).text


def test_every_kind_of_content_becomes_text() -> None:
    text = TextContent(type="text", text="hello")
    assert text_of(text, text) == "hello\nhello"
    assert (
        text_of(ImageContent(type="image", mime_type="image/png", data="AAAA"))
        == "[image: image/png, 3 bytes, not shown]"
    )
    assert (
        text_of(AudioContent(type="audio", mime_type="audio/wav", data="AA=="))
        == "[audio: audio/wav, 1 bytes, not shown]"
    )
    link = ResourceLink(type="resource_link", name="notes", uri="file:///n")
    assert text_of(link) == "[resource: notes at file:///n]"
    inner = TextResourceContents(uri="file:///n", text="inner text")
    assert text_of(EmbeddedResource(type="resource", resource=inner)) == "inner text"
    blob = BlobResourceContents(uri="file:///b", blob="AAA=")
    assert text_of(EmbeddedResource(type="resource", resource=blob)) == "[resource: file:///b, 2 bytes, not shown]"


def test_structured_content_is_shown_without_text_and_stored_with_text() -> None:
    assert text_of(structured_content={"é": [1]}) == '{"é": [1]}'
    both = to_result(answer(TextContent(type="text", text="one"), structured_content={"n": 1}), 0.0, ToolLimits())
    assert both.text == "one"
    assert json.loads(both.raw or "")["structuredContent"] == {"n": 1}
    assert text_of(is_error=True) == "the tool failed without a message"
    assert text_of() == ""


def texts_of(*each: str) -> list[TextContent]:
    return [TextContent(type="text", text=text) for text in each]


@pytest.mark.parametrize(
    ("said", "structured"),
    [
        (['{\n  "n": 1,\n  "é": [true]\n}'], {"é": [True], "n": 1}),
        (["5"], {"result": 5}),
        (["a b"], {"result": "a b"}),
        (["null"], {"result": None}),
        (["a", "5", '{"x": 1}'], {"result": ["a", 5, {"x": 1}]}),
        (['["a", 5]'], {"result": ["a", 5]}),
        ([], {"n": 1}),
    ],
)
def test_a_result_with_equal_structured_content_is_stored_once(said: list[str], structured: object) -> None:
    assert to_result(answer(*texts_of(*said), structured_content=structured), 0.0, ToolLimits()).raw is None


@pytest.mark.parametrize(
    ("said", "structured"),
    [
        (["1"], {"result": True}),
        (["1"], {"result": 1.0}),
        (["ok"], {"status": "ok"}),
        (["a", "b"], {"result": ["b", "a"]}),
        (["a", "b"], {"result": ["a"]}),
        (['{"n": 1'], {"n": 1}),
        (["[" * 100_000], {"result": []}),
        (["9" * 5000], {"result": 9}),
        (['{"n": 1}'], {"n": 1, "m": 2}),
    ],
)
def test_structured_content_that_exceeds_the_text_is_stored(said: list[str], structured: object) -> None:
    result = to_result(answer(*texts_of(*said), structured_content=structured), 0.0, ToolLimits(max_raw_chars=200_000))
    assert json.loads(result.raw or "")["structuredContent"] == structured


def test_a_result_that_is_sent_twice_is_stored_once_and_a_cut_one_keeps_its_answer_once() -> None:
    found = {"hits": [{"title": f"title {n}", "snippet": "words " * 40} for n in range(40)]}
    twice = answer(*texts_of(json.dumps(found)), structured_content=found)
    sent = len(twice.model_dump_json(by_alias=True))
    whole = to_result(twice, 0.0, ToolLimits())
    assert whole.raw is None
    assert len(whole.text) < sent / 2, "text and raw were the text and all that was sent: three times"
    cut = to_result(twice, 0.0, ToolLimits(max_result_chars=1000))
    assert json.loads(json.loads(cut.raw or "")["content"][0]["text"]) == found
    assert len(cut.raw or "") < 0.6 * sent
    assert with_summary(whole, "short", ToolLimits()).raw == cut.raw
    tight = to_result(twice, 0.0, ToolLimits(max_result_chars=1000, max_raw_chars=8000))
    assert "title 20" in (tight.raw or ""), "of the two the one that is clipped text by text"


def test_an_answer_is_not_stored_if_its_bound_leaves_less_than_the_model_reads() -> None:
    long = "".join(f"word{n} " for n in range(10_000))
    limits = ToolLimits(max_result_chars=20_000)
    assert to_result(answer(*texts_of(long)), 0.0, limits).raw is None
    assert to_result(answer(*texts_of(long), structured_content={"result": long}), 0.0, limits).raw is None
    assert to_result(answer(*texts_of(long, "the second " * 9)), 0.0, limits).raw is None
    raw = to_result(answer(*texts_of(*([long] * 5 + ["middle"] + [long] * 5))), 0.0, limits).raw
    assert "middle" in (raw or ""), "what the model does not read"


def test_unread_parts_of_an_answer_are_stored_up_to_a_bound() -> None:
    long = to_result(answer(TextContent(type="text", text="x" * 9000)), 0.0, ToolLimits(max_result_chars=100))
    assert json.loads(long.raw or "")["content"][0]["text"] == "x" * 9000
    image = answer(ImageContent(type="image", mime_type="image/png", data="A" * 90_000), structured_content={"n": 1})
    clipped = json.loads(raw_text(image, 5000))
    assert clipped["content"][0]["data"].endswith("… [88000 more characters]")
    assert clipped["structuredContent"] == {"n": 1}
    assert len(raw_text(image, 300)) <= 300


def test_text_that_utf8_cannot_hold_is_made_storable() -> None:
    result = to_result(
        answer(TextContent(type="text", text="a\ud800b"), structured_content={"x": "\udfff"}), 0.0, ToolLimits()
    )
    assert result.text == "a\ufffdb"
    (result.raw or "").encode()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "42", "annotations": {"audience": ["model"], "priority": 7}}]}, "42"),
        ({"content": [{"type": "text", "text": "42", "_meta": "x"}]}, "42"),
        ({"content": [{"type": "resource_link", "name": "n", "uri": "a:b", "annotations": 5}]}, "[resource: n at a:b]"),
        ({"content": [{"type": "text", "text": "42"}], "isError": None}, "42"),
        ({"content": "42"}, "42"),
        ({"content": {"type": "text", "text": "42"}}, "42"),
        ({"content": None, "structuredContent": {"a": 42}}, '{"a": 42}'),
        ({"structuredContent": {"a": 42}}, '{"a": 42}'),
        ({"content": None, "isError": True}, "the tool failed without a message"),
        ({"content": [{"type": "text", "text": 42}, None, 5]},
         "[text: not shown]\n[a block of no kind: not shown]\n[a block of no kind: not shown]"),
    ],
)  # fmt: skip
def test_an_answer_that_is_malformed_beside_its_content_is_an_answer(result: dict[str, Any], text: str) -> None:
    message = plain(JSONRPCResponse(jsonrpc="2.0", id=1, result=result))
    assert isinstance(message, JSONRPCResponse)
    assert to_result(CallToolResult.model_validate(message.result, by_name=False), 0.1, ToolLimits()).text == text
