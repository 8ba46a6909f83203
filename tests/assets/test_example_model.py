"""The bundled tokenizer spells values alike everywhere, and its chat template only ever appends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_example_model import MAX_VOCAB, build_tokenizer
from world import COLORS, TOOLS

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "47+38"}}\n</tool_call><|im_end|>'


def render(tokenizer: Any, messages: list[dict[str, Any]], prompt: bool = False, tools: Any = TOOLS) -> str:
    return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt))


def assistant_call(name: str, arguments: Any, content: str = "") -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def test_any_text_decodes_to_itself(tokenizer: Any) -> None:
    @settings(deadline=None)  # a loaded machine is no finding
    @given(st.text(max_size=80))
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_demonstrations_decode_to_themselves_and_stay_short(tokenizer: Any, demos: list[dict[str, Any]]) -> None:
    texts = [render(tokenizer, demo["messages"]) for demo in demos[:1_000]]
    encoded = tokenizer(texts)["input_ids"]
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    assert max(map(len, encoded)) <= 140


@pytest.mark.parametrize("value", ["47+38", "9-80", "5*66", "QX47", "WKLM", "-33", "1764"])
def test_a_value_is_one_token_per_character_wherever_it_stands(tokenizer: Any, value: str) -> None:
    spelled = [token for character in value for token in tokenizer.encode(character)]
    assert len(spelled) == len(value)
    for before, after in [
        ("What is ", "?"),
        (' "', '"}}\n'),
        ("box ", " like?"),
        ("\n", "\n"),
        ("<answer>", "</answer>"),
    ]:
        ids = tokenizer.encode(before + value + after)
        assert ids == tokenizer.encode(before) + spelled + tokenizer.encode(after)


def test_colors_and_structure_are_units(tokenizer: Any) -> None:
    assert all(len(tokenizer.encode(color)) == 1 for color in COLORS)
    assert len(tokenizer.encode(CALL)) <= 20
    for query in ("What is 47+38?", "Which color does the owner of box QX47 like?"):
        prompt = render(tokenizer, [{"role": "user", "content": query}], prompt=True)
        assert len(tokenizer.encode(prompt)) <= 50
    assert len(tokenizer) <= MAX_VOCAB


def test_markers_survive_the_removal_of_special_tokens(tokenizer: Any) -> None:
    assert tokenizer.decode(tokenizer.encode(CALL), skip_special_tokens=True) == CALL.removesuffix("<|im_end|>")


def test_the_tokenizer_is_the_same_every_time(tokenizer: Any) -> None:
    assert build_tokenizer().backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_the_template_only_appends(tokenizer: Any, demos: list[dict[str, Any]]) -> None:
    """What is added after a prompt starts with the prompt; what the assistant wrote stays as it was generated."""
    for demo in demos[:300]:
        messages = demo["messages"]
        whole = render(tokenizer, messages)
        for index, message in enumerate(messages):
            assert whole.startswith(render(tokenizer, messages[: index + 1]))
            if message["role"] == "assistant":
                assert whole.startswith(render(tokenizer, messages[:index], prompt=True))


def test_a_call_is_rendered_exactly_as_it_is_generated(tokenizer: Any) -> None:
    question = {"role": "user", "content": "What is 47+38?"}
    prompt = render(tokenizer, [question], prompt=True)
    for arguments in ({"expression": "47+38"}, '{"expression": "47+38"}'):
        assert render(tokenizer, [question, assistant_call("calculator", arguments)]) == f"{prompt}{CALL}\n"
    with_words = render(tokenizer, [question, assistant_call("calculator", {"expression": "47+38"}, "Let me see.")])
    assert with_words == f"{prompt}Let me see.\n{CALL}\n"


def test_results_of_one_turn_share_a_user_turn(tokenizer: Any) -> None:
    call = assistant_call("box_owner", {"box": "QX47"})
    call["tool_calls"] *= 2
    results = [{"role": "tool", "content": text} for text in ("WKLM", "ABCD")]
    messages = [{"role": "user", "content": "Hi"}, call, *results, {"role": "assistant", "content": "Bye"}]
    assert render(tokenizer, messages, tools=None) == (
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "box_owner", "arguments": {"box": "QX47"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "box_owner", "arguments": {"box": "QX47"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nWKLM\n</tool_response>\n"
        "<tool_response>\nABCD\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nBye<|im_end|>\n"
    )


@pytest.mark.parametrize("tools", [None, TOOLS, [{"name": "stop"}]], ids=["no tools", "tools", "no parameters"])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_plain_jinja_renders_what_transformers_renders(
    tokenizer: Any, example_dir: Path, tools: Any, system: str | None
) -> None:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((example_dir / "chat_template.jinja").read_text())
    messages = [{"role": "system", "content": system}] if system else []
    messages += [
        {"role": "user", "content": "5 < 6 & 'é'?"},
        assistant_call("calculator", {"expression": "5<6 & é"}),
        {"role": "tool", "content": "malformed expression 5<6 & é"},
    ]
    text = render(tokenizer, messages, prompt=True, tools=tools)
    assert template.render(messages=messages, tools=tools, add_generation_prompt=True) == text
    assert (system or "Be brief.") in text or not system
    assert ("# Tools" in text) == bool(tools)
    assert text.startswith("<|im_start|>system\n") == bool(tools or system)
    assert "5<6 & é" in text


def test_the_initial_model_loads_and_is_small(tmp_path: Path, example_dir: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    script = example_dir.parents[1] / "scripts" / "make_example_model.py"
    subprocess.run([sys.executable, str(script), "--out", str(tmp_path)], check=True, timeout=150, capture_output=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size <= 8_000_000
    assert tokenizer.chat_template == (example_dir / "chat_template.jinja").read_text()
    assert model.config.vocab_size >= len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.config.pad_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")
