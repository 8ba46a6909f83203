"""A long message costs others little: it is refused by its length, or encoded while other episodes go on."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from sampler.core.rendering.ahead import LONG_CHARS, length_of_next_prompt, next_prompt
from sampler.core.rendering.longest import LeastTokens
from sampler.core.rendering.template import ChatTemplate, PromptTooLong
from sampler.core.rendering.view import PolicyTokens, View
from tests.sampler.chats import chat
from tests.sampler.episodes import MODEL

BYTES = pre_tokenizers.ByteLevel.alphabet()
TEXTS = st.text(st.one_of(st.characters(), st.sampled_from(list(" \n\t\0\x04abé\u0301\u0390漢🙂"))), max_size=300)


def of_bytes(*, normalizer: normalizers.Normalizer | None = None, lacking: str = "") -> Tokenizer:
    """By bytes, with long merges; `lacking`: bytes without a token."""
    vocabulary = {character: at for at, character in enumerate(sorted(set(BYTES) - set(lacking)))}
    merges = [("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("ĠĠĠĠ", "ĠĠĠĠ"), ("a", "b"), ("ab", "ab")]
    merges += [("Î", "Ĳ"), ("ÎĲ", "ÎĲ"), ("ÎĲÎĲ", "ÎĲÎĲ")]  # U+0390
    for first, second in merges:
        vocabulary[first + second] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


TOKENIZERS = {
    "the example's": Tokenizer.from_file(str(MODEL / "tokenizer.json")),
    "by bytes": of_bytes(),
    "composing": of_bytes(normalizer=normalizers.NFC()),
    "lacking bytes": of_bytes(lacking="ĀĄĦ"),  # 0, 4 and 0x84, which continues characters
    "lacking controls": of_bytes(lacking="ĀĄ"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS, times=st.integers(1, 40))
@example(text="\x04", times=40)  # without a token
@example(text="\u03b9\u0308\u0301", times=40)  # one character, once composed
def test_no_text_has_fewer_tokens_than_its_length_says(name: str, text: str, times: int) -> None:
    tokenizer = TOKENIZERS[name]
    whole = text * times
    assert LeastTokens.of(tokenizer)(whole) <= len(tokenizer.encode(whole, add_special_tokens=False).ids)


def test_a_tokenizer_that_drops_characters_or_joins_unknown_ones_has_no_bound() -> None:
    assert LeastTokens.of(TOKENIZERS["by bytes"]).longest == 8
    assert LeastTokens.of(TOKENIZERS["lacking controls"]).dropped == "\0\x04"
    assert LeastTokens.of(TOKENIZERS["lacking bytes"]).longest is None
    assert LeastTokens.of(of_bytes(normalizer=normalizers.Strip())).longest is None
    assert LeastTokens.of(of_bytes(normalizer=normalizers.Replace(" ", ""))).longest is None
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert LeastTokens.of(words).longest is None


def view_of(folder: Path, max_tokens: int) -> View:
    return View(
        "main", None, replace(ChatTemplate.from_dir(folder), max_tokens=max_tokens), None, "branch", PolicyTokens()
    )


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 characters for a token at most."""
    monkeypatch.setattr(ChatTemplate, "encode", lambda *_: pytest.fail("it is encoded"))
    for message in (
        {"role": "user", "content": "the quick brown fox\n" * 1_000_000},
        {"role": "tool", "tool_call_id": "x", "content": "9" * 20_000_000},
        {"role": "assistant", "content": "a" * 20_000_000},
    ):
        messages = [{"role": "user", "content": "go"}, message]
        assert await next_prompt(view_of(MODEL, 4096), messages, restart=False) is None
        assert length_of_next_prompt(view_of(MODEL, 4096), messages, restart=False) > 4096


async def test_blanks_that_a_template_takes_off_do_not_count() -> None:
    """Before the template has rendered them: it may take them off. Afterwards they do."""
    messages = [{"role": "user", "content": "go" + " " * 10_000}]
    view_of(MODEL, 64).require_room(messages)
    assert await next_prompt(view_of(MODEL, 64), messages, restart=False) is None


async def test_others_go_on_while_a_long_message_is_encoded() -> None:
    """Some 0.5 s. A tokenizer that keeps Python's lock would leave the event loop a few steps."""
    view, text = view_of(MODEL, 1 << 30), "the quick brown fox, 12345 jumps over\n" * 12_000
    steps = 0

    async def go_on() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0.001)

    going = asyncio.create_task(go_on())
    prompt = await next_prompt(view, [{"role": "user", "content": text}], restart=False)
    going.cancel()
    assert prompt is not None
    assert steps > 50


async def test_a_long_schema_of_a_tool_is_encoded_in_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, threads = ChatTemplate.encode, set()

    def noted(template: ChatTemplate, text: str) -> list[int]:
        if len(text) > LONG_CHARS:
            threads.add(threading.current_thread())
        return encode(template, text)

    tool = {"name": "find", "description": "the quick brown fox\n" * 4_000, "parameters": {"type": "object"}}
    template = replace(chat("qwen"), max_tokens=1 << 30)
    view = View("main", None, template, [{"type": "function", "function": tool}], "branch", PolicyTokens())
    monkeypatch.setattr(ChatTemplate, "encode", noted)
    assert await next_prompt(view, [{"role": "user", "content": "go"}], restart=False) is not None
    assert len(threads) == 1
    assert threading.main_thread() not in threads


def test_a_tokenizer_without_a_bound_refuses_what_hardly_fits() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    template = replace(ChatTemplate.from_dir(MODEL), tokenizer=words, max_tokens=4096)
    template.require_room("a" * 1_000_000)
    with pytest.raises(PromptTooLong, match="expected at most 4096"):
        template.require_room("a" * 2_000_000)


async def test_a_long_prompt_has_the_same_ids_as_one_that_was_encoded_at_once() -> None:
    messages = [{"role": "user", "content": "the quick <|im_end|> fox\n" * 4_000}]
    ahead, at_once = view_of(MODEL, 1 << 30), view_of(MODEL, 1 << 30)
    prompt = await next_prompt(ahead, messages, restart=False)
    assert prompt == at_once.next_prompt(messages, restart=False)
    assert ahead.context.ids == at_once.context.ids
