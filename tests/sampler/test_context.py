"""A context grows by what the template adds, and equals the full rendering where the model writes canonically."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.core.rendering.context import Context
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from shared.documents.states import BranchCause
from shared.errors import ConfigError
from tests.sampler.chats import (
    NAMED,
    TEMPLATES,
    TOOLS,
    call_message,
    chat,
    result_message,
    save_model_dir,
    small_tokenizer,
)

EXAMPLE = Path(__file__).parents[2] / "assets" / "example"
START = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is A?"}]


def template_of(name: str) -> ChatTemplate:
    if name == "example":
        return ChatTemplate.build(small_tokenizer(), (EXAMPLE / "chat_template.jinja").read_text(), NAMED)
    return chat(name)


def canonical_reply(template: ChatTemplate, before: list[dict[str, object]], reply: dict[str, object]) -> list[int]:
    """The ids that the template gives this reply, up to and including its end of turn."""
    prompt = template.render(before, TOOLS, True)
    whole = template.render([*before, reply], TOOLS)
    assert whole.startswith(prompt)
    return template.encode(whole[len(prompt) :].removesuffix("\n"))


def whole_ids(template: ChatTemplate, messages: Sequence[Any], tools: Any, is_open: bool = False) -> list[int]:
    """Of a full rendering, as the template can show the messages: `strict` shows no system message."""
    return template.render_ids(list(turn_format(template).spoken(messages)), tools, is_open)


@pytest.mark.parametrize("name", ["qwen", "llama", "strict", "example"])
def test_ids_equal_the_full_rendering_for_canonical_replies(name: str) -> None:
    template = template_of(name)
    context = Context(template, TOOLS)
    assert context.start(START).added == whole_ids(template, START, TOOLS, True)
    messages = list(START)
    turns = [
        (call_message("I look."), [result_message("A is 5")]),
        (call_message(x="B"), [result_message("B is <|im_end|> é\n")]),
        ({"role": "assistant", "content": "Both?"}, [{"role": "user", "content": "Yes."}]),
    ]
    for reply, answers in turns:
        output = canonical_reply(template, messages, reply)
        before = list(context.ids)
        added = context.extend(output, answers).added
        assert context.ids == [*before, *output, *added]
        messages += [reply, *answers]
        assert context.ids == whole_ids(template, messages, TOOLS, True)


def test_several_results_in_one_turn_are_one_message_of_the_template() -> None:
    template, messages = chat("qwen"), list(START)
    context = Context(template, TOOLS)
    context.start(START)
    reply = {**call_message(), "tool_calls": [call_message(x=x)["tool_calls"][0] for x in "AB"]}  # type: ignore[index]  # a list
    results = [result_message("5"), result_message("6")]
    context.extend(canonical_reply(template, messages, reply), results)
    assert context.ids == whole_ids(template, [*messages, reply, *results], TOOLS, True)


@pytest.mark.parametrize("name", ["qwen", "llama", "strict", "example"])
def test_a_reply_cut_off_gets_its_missing_end_of_turn_as_a_prompt_token(name: str) -> None:
    template = template_of(name)
    complete, cut = Context(template, TOOLS), Context(template, TOOLS)
    for context in (complete, cut):
        context.start(START)
    words = template.encode("the answer")
    end = complete.format.end_ids[0]
    added = complete.extend([*words, end], [{"role": "user", "content": "go on"}]).added
    added_to_cut = cut.extend(words, [{"role": "user", "content": "go on"}]).added
    assert added_to_cut == [end, *added]
    assert cut.ids == complete.ids


def test_an_empty_reply_is_an_empty_turn() -> None:
    context = Context(chat("qwen"))
    context.start(START)
    assert context.extend([], [{"role": "user", "content": "?"}]).added[0] == context.format.end_ids[0]


sampled = st.lists(st.integers(0, small_tokenizer().get_vocab_size() - 1), max_size=30)


@given(st.lists(st.tuples(sampled, st.text(max_size=20), st.booleans()), min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_every_prompt_begins_with_the_exact_ids_of_the_previous_turn(turns: list[tuple[list[int], str, bool]]) -> None:
    context = Context(chat("qwen"), TOOLS, rewrites="keep")
    ids = context.start(START).added
    for output, text, is_tool in turns:
        ids = ids + output
        answer = result_message(text) if is_tool else {"role": "user", "content": text}
        added = context.extend(output, [answer]).added
        assert context.ids == ids + added
        ids = list(context.ids)


def test_appended_ids_do_not_depend_on_the_history() -> None:
    short, long = Context(chat("qwen"), TOOLS), Context(chat("qwen"), TOOLS)
    short.start(START)
    long.start([*START, {"role": "assistant", "content": "no"}, {"role": "user", "content": "x" * 5000}])
    assert short.extend([5], [result_message("r")]).added == long.extend([5], [result_message("r")]).added


def test_a_new_start_is_a_new_branch() -> None:
    context = Context(chat("qwen"))
    first = context.start(START).added
    context.extend([5], [result_message("r")])
    prompt = context.restart(START)
    assert context.ids == first
    assert (prompt.shared_length, prompt.added, prompt.cause) == (len(first), [], BranchCause.CONTEXT_POLICY)


@pytest.mark.parametrize(
    "text", ["{{ messages[-1].content }}", "{% for m in messages %}{{ m.role }}{% endfor %}<|im_end|>"]
)
def test_a_template_whose_turns_have_no_end_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ConfigError, match="no special token follows an assistant's message"):
        Context(ChatTemplate.build(small_tokenizer(), text, NAMED))


NEEDS_TOOLS = (
    "{% for tool in tools %}{{ tool.function.name }}<|im_end|>{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_template_that_refuses_conversations_without_tools_is_learned_with_some() -> None:
    """As Phi-4-mini's does: it iterates over None."""
    template = ChatTemplate.build(small_tokenizer(), NEEDS_TOOLS, NAMED)
    context = Context(template, TOOLS)
    context.start(START)
    reply = template.encode("It is 4.<|im_end|>")
    context.extend(reply, [result_message("r")])
    assert context.ids == whole_ids(
        template, [*START, {"role": "assistant", "content": "It is 4."}, result_message("r")], TOOLS, True
    )


TURN = "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}"
OPENER = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
NO_RESULTS = {
    "refuses them": "{% for m in messages %}{% if (loop.index0 % 2 == 0) != (m.role == 'user') %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}" + TURN + "{% endfor %}" + OPENER,
    "leaves them out": "{% for m in messages if m.role != 'tool' %}" + TURN + "{% endfor %}" + OPENER,
}


@pytest.mark.parametrize("text", NO_RESULTS.values(), ids=NO_RESULTS.keys())
def test_tool_results_become_user_messages_if_the_template_shows_none(text: str) -> None:
    """The error of a malformed call is also sent as a result: otherwise the episode would fail, or the model never see it."""
    template = ChatTemplate.build(small_tokenizer(), text, NAMED)
    question = [{"role": "user", "content": "What is A?"}]
    results = [
        {"role": "tool", "name": "lookup", "tool_call_id": "c00000000", "content": "5 <|im_end|>"},
        {"role": "tool", "name": "error", "tool_call_id": "e00000000", "content": "tool call 2 is not closed"},
    ]
    said = {"role": "user", "content": "[lookup]\n5 <|im_end|>\n\n[error]\ntool call 2 is not closed"}
    answer = {"role": "assistant", "content": "I look."}
    context = Context(template)
    context.start(question)
    context.extend(template.encode("I look.<|im_end|>"), results, answer)
    assert context.ids == whole_ids(template, [*question, answer, said], None, True)
    context.restart([*question, answer, *results])
    assert context.ids == whole_ids(template, [*question, answer, said], None, True)


def test_a_template_that_rejects_every_conversation_is_refused_with_its_own_message() -> None:
    with pytest.raises(ConfigError, match=r"chat template refused messages .*: only pictures"):
        Context(ChatTemplate.build(small_tokenizer(), "{{ raise_exception('only pictures') }}", NAMED))


def test_a_template_that_drops_old_replies_is_refused_with_a_reason() -> None:
    context = Context(ChatTemplate.build(small_tokenizer(), "{{ messages[-1].content }}<|im_end|>", NAMED))
    context.start(START)
    with pytest.raises(ConfigError, match="the end of a reply cannot be found"):
        context.extend([5], [{"role": "user", "content": "x"}])


def test_the_bundled_models_context_equals_the_full_rendering(tmp_path: Path) -> None:
    """Its own tokenizer, where the folder is there; else the small one with its template."""
    folder = EXAMPLE / "model"
    if not (folder / "tokenizer.json").is_file():
        folder = save_model_dir(tmp_path, (EXAMPLE / "chat_template.jinja").read_text(), in_config=False)
    template = ChatTemplate.from_dir(folder)
    context, messages = Context(template, TOOLS), list(START)
    context.start(START)
    for number in range(3):
        reply, result = call_message(x=str(number)), result_message(f"box {number}")
        context.extend(canonical_reply(template, messages, reply), [result])
        messages += [reply, result]
    assert context.ids == whole_ids(template, messages, TOOLS, True)


def test_all_template_families_are_tested() -> None:
    assert set(TEMPLATES) == {"qwen", "llama", "strict"}
