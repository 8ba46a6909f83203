"""Instructions of the sampler's stand where the model reads them, with whatever roles its template knows."""

from pathlib import Path

import pytest

from sampler.core.rendering.instructions import SystemRole, system_role, with_instruction
from sampler.core.rendering.template import ChatTemplate
from tests.sampler.chats import byte_level_tokenizer
from tests.sampler.families import FAMILIES

SMOLLM2 = (Path(__file__).parent / "templates" / "smollm2.jinja").read_text(encoding="utf-8")
DEFAULT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TURNS = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}" + (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
REJECTS = (
    "{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}" + TURNS
)
IGNORES = TURNS.replace("{%- for m in messages %}", "{%- for m in messages if m.role != 'system' %}")
TEXT = "Reply with JSON."


def built(text: str) -> ChatTemplate:
    return ChatTemplate.build(
        byte_level_tokenizer(("<|im_start|>", "<|im_end|>"), ()), text, {"eos_token": "<|im_end|>"}
    )


def test_the_role_of_system_messages_is_learned() -> None:
    assert system_role(built(SMOLLM2)) == SystemRole(shown=True, default=DEFAULT)
    assert system_role(built(TURNS)) == SystemRole(shown=True)
    assert system_role(built(REJECTS)) == system_role(built(IGNORES)) == SystemRole(shown=False)


def test_an_instruction_is_appended_to_the_system_message() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert with_instruction([system, {"role": "user", "content": "hi"}], TEXT, built(TURNS)) == [
        {"role": "system", "content": "Be brief.\n\nReply with JSON."},
        {"role": "user", "content": "hi"},
    ]
    assert system["content"] == "Be brief."


def test_without_a_system_message_the_templates_own_default_stays() -> None:
    template = built(SMOLLM2)
    user = {"role": "user", "content": "hi"}
    before, after = template.render([user], None), template.render(with_instruction([user], TEXT, template), None)
    assert after == before.replace(DEFAULT, f"{DEFAULT}\n\n{TEXT}")


@pytest.mark.parametrize("text", [REJECTS, IGNORES])
def test_without_a_system_role_it_stands_before_the_question(text: str) -> None:
    template = built(text)
    shown = template.render(with_instruction([{"role": "user", "content": "hi"}], TEXT, template), None)
    assert shown == "<|im_start|>user\nReply with JSON.\n\nhi<|im_end|>\n"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_shows_it_once(name: str) -> None:
    for mode in FAMILIES[name].modes:
        template = FAMILIES[name].template(mode)
        for start in ([], [{"role": "system", "content": "Be brief."}]):
            messages = [*start, {"role": "user", "content": "Zürich?"}]
            shown = template.render(with_instruction(messages, TEXT, template), None, True)
            assert shown.count(TEXT) == 1
            assert [shown.count(str(message["content"])) for message in messages] == [1] * len(messages)
