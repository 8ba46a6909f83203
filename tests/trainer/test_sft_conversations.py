"""Conversations become tokens, of which the replies are trained; what a model could not have said is refused by its line."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from shared.errors import ConfigError
from trainer.modeling.model import load_tokenizer
from trainer.sft.conversations import (
    ChatExample,
    conversation_tree,
    read_conversations,
    sample_order,
    spans,
)

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"x": {}, "y": {}}}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"x": 1, "y": 2}'}}
TOOL_USE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1+2?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": "Thanks"},
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_only_replies_with_their_end_of_turn_are_trained(tokenizer: PreTrainedTokenizerFast) -> None:
    conversation = ChatExample("f:1", TOOL_USE, [TOOL])
    found = [(tokenizer.decode(span.ids), span.trained) for span in spans(conversation, tokenizer)]
    assert [text for text, trained in found if trained] == [
        '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call><|im_end|>',
        "It is 3.<|im_end|>",
    ]
    whole = tokenizer.apply_chat_template(TOOL_USE[:5], tools=[TOOL], tokenize=False)
    assert "".join(text for text, _ in found) + "\n" == whole
    assert found[0][0].endswith("<|im_start|>assistant\n")
    assert found[2] == (
        "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        False,
    )


def test_a_conversation_becomes_a_chain_with_one_dispatch_per_reply(tokenizer: PreTrainedTokenizerFast) -> None:
    conversation = ChatExample("f:1", TOOL_USE, [TOOL])
    tree = conversation_tree(conversation, tokenizer)
    parts = list(spans(conversation, tokenizer))
    assert tree.token_ids_N.tolist() == [token for part in parts for token in part.ids]
    assert tree.trained_N.tolist() == [part.trained for part in parts for _ in part.ids]
    assert tree.parents_N.tolist() == list(range(-1, tree.num_tokens - 1))
    assert set(tree.dispatches_N.tolist()) == {-1, 0, 1}
    assert [dispatch.turn for dispatch in tree.dispatches] == [0, 1]


def test_a_template_that_rewrites_earlier_text_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [user("a"), {"role": "assistant", "content": "b"}, user("c"), {"role": "assistant", "content": "d"}]
    keeps = tokenizer.chat_template
    try:
        tokenizer.chat_template = "{{ messages | length }}" + str(keeps)
        with pytest.raises(ConfigError, match=r"f:1: the chat template changes what stands before messages\[1\]"):
            list(spans(ChatExample("f:1", messages, None), tokenizer))
        tokenizer.chat_template = str(keeps).replace("~ '<|im_end|>\\n' }}", "}}")
        with pytest.raises(ConfigError, match=r"f:1: the reply messages\[1\] does not end with '<\|im_end\|>'"):
            list(spans(ChatExample("f:1", messages, None), tokenizer))
    finally:
        tokenizer.chat_template = keeps


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"bad\.jsonl:2: not JSON"),
        ("[" * 100_000, r"bad\.jsonl:2: not JSON: nested too deeply"),
        (
            '{"messages": [{"role": "user", "content": "x", "content": "y"}]}',
            r'bad\.jsonl:2: "content" is given twice in one object; expected it once',
        ),
        ('{"prompt": "x"}', r'bad\.jsonl:2: "messages" is missing or empty'),
        ('{"messages": [{"role": "bot", "content": "x"}]}', r'bad\.jsonl:2: messages\[0\]: "role" is \'bot\''),
        ('{"messages": [{"role": "user"}]}', r'bad\.jsonl:2: messages\[0\]: "content" is NoneType; expected text'),
        ('{"messages": [{"role": "user", "content": "x"}]}', r"bad\.jsonl:2: no message of role \"assistant\""),
        (
            '{"messages": [{"role": "assistant", "content": "x"}], "tool": []}',
            r'bad\.jsonl:2: "tool" is not known; expected messages, tools, images alone',
        ),
        (
            '{"messages": [{"role": "assistant", "content": "x"}], "tools": {}}',
            r'bad\.jsonl:2: "tools" is dict; expected a list',
        ),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [{"id": 1}]}]}',
            r'bad\.jsonl:2: messages\[1\]: "tool_calls" is \[\{"id": 1\}\]; expected a list of',
        ),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    good = json.dumps({"messages": [user("x"), {"role": "assistant", "content": "y"}]})
    path.write_text(f"{good}\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_conversations(path)


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"messages": "\xe9"}')
    with pytest.raises(ConfigError, match=r"latin\.jsonl: byte 14 is not UTF-8"):
        read_conversations(tmp_path / "latin.jsonl")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "assistant", "content": "x"}], r"f:1: the chat template cannot render messages\[:0\]"),
        (
            [user("x"), {"role": "assistant", "content": "\ud800"}],
            r"f:1: the chat template cannot render messages\[:2\]",
        ),
        (
            [user("x"), {"role": "assistant", "content": "a<|im_end|>b"}],
            r"f:1: the reply messages\[1\] has '<\|im_end\|>' inside",
        ),
    ],
)
def test_a_conversation_that_no_model_could_have_had_is_refused(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        list(spans(ChatExample("f:1", messages, None), tokenizer))


def test_every_sample_comes_once_per_epoch_whatever_the_step_size() -> None:
    one_by_one = [sample_order(7, i, 1, seed=3)[0] for i in range(21)]
    assert one_by_one == sample_order(7, 0, 21, seed=3) == sample_order(7, 0, 4, 3) + sample_order(7, 4, 17, 3)
    assert all(Counter(one_by_one[i : i + 7]) == Counter(range(7)) for i in (0, 7, 14))
    assert one_by_one[:7] != one_by_one[7:14]
    assert one_by_one != sample_order(7, 0, 21, seed=4)


def test_a_template_that_leaves_tools_or_calls_out_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    keeps = tokenizer.chat_template
    try:
        tokenizer.chat_template = str(keeps).replace("tools", "unknown_variable")
        other = {"type": "function", "function": {"name": "subtract", "parameters": {}}}
        with pytest.raises(ConfigError, match=r"f:1: the chat template leaves out the tool 'subtract'.* chat_template"):
            list(spans(ChatExample("f:1", TOOL_USE, [TOOL, other]), tokenizer))
        tokenizer.chat_template = "{% for m in messages %}{{ m.role ~ m.content }}<|im_end|>{% endfor %}"
        with pytest.raises(ConfigError, match="leaves out the tool 'add'"):
            list(spans(ChatExample("f:1", TOOL_USE, None), tokenizer))
    finally:
        tokenizer.chat_template = keeps


def test_a_file_takes_the_place_of_the_models_template(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "assets" / "example" / "model"
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    assert load_tokenizer(model, tmp_path / "own.jinja").chat_template == "{{ messages }}"
    assert load_tokenizer(model).chat_template != "{{ messages }}"
    with pytest.raises(ConfigError, match=r"missing\.jinja: cannot be read"):
        load_tokenizer(model, tmp_path / "missing.jinja")
