"""Over the chat templates of nine model families: the context equals a full rendering, token for token; branches come where a
template rewrites and nowhere else; what a family's model writes is what its parser reads."""

import random
from functools import cache
from pathlib import Path

import pytest

from sampler.core.parsers import get_parser
from sampler.core.rendering.context import Context
from shared.documents.states import BranchCause
from tests.sampler import families
from tests.sampler.conversations import SAYINGS, TOOLS, play
from tests.sampler.families import FAMILIES, FOLDER, Call, Family, Reply

MODES = [(family, mode) for family in FAMILIES.values() for mode in family.modes]
REWRITING = {
    ("qwen3", "on"),
    ("qwen3", "off"),
    ("mistral_nemo", "off"),
    ("mistral_small", "off"),
    ("deepseek_v31", "on"),
    ("glm45", "on"),
}
SEEDS = 4


def name_of(value: Family | str) -> str:
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize(("family", "mode"), MODES, ids=name_of)
def test_every_prompt_has_the_ids_of_a_full_rendering(family: Family, mode: str) -> None:
    causes = set()
    for seed in range(SEEDS):
        for check in play(family, mode, seed):
            assert check.found == check.wanted
            shared = check.prompt.shared_length
            assert check.before[:shared] + check.prompt.added == check.found
            if check.prompt.cause is BranchCause.CLEAN:
                assert shared == len(check.before)
            causes.add(check.prompt.cause)
    assert (BranchCause.TEMPLATE_REWRITE in causes) == ((family.name, mode) in REWRITING)


@pytest.mark.parametrize(("family", "mode"), MODES, ids=name_of)
def test_keeping_the_history_only_appends(family: Family, mode: str) -> None:
    for seed in range(2):
        for check in play(family, mode, seed, rewrites="keep"):
            assert check.prompt.cause is BranchCause.CLEAN
            assert check.prompt.shared_length == len(check.before)
            assert check.found == check.before + check.prompt.added


@pytest.mark.parametrize(("family", "mode"), MODES, ids=name_of)
def test_a_parser_reads_its_familys_format(family: Family, mode: str) -> None:
    rng = random.Random(1)
    parse = get_parser(family.parser)
    arguments = [{"x": 'a "b"\n</c> é🙂', "n": 5}, {}, {"deep": {"a": [1, None, True, -2.5]}, "x": "5"}, {"x": "null"}]
    for count in (0, 1, 2, 3):
        for _ in range(12):
            calls = [
                Call(family.call_id(i, "lookup"), "lookup", rng.choice(arguments))
                for i in range(min(count, family.most_calls))
            ]
            content = rng.choice(SAYINGS[:5]) if not calls or family.text_beside_call else ""
            thinks = mode in family.thinks
            written = Reply(content, "Let me see." if thinks else "", calls)
            read = parse(family.written(mode, QUESTION, TOOLS, written).text, TOOLS)
            assert (read.content, read.reasoning) == (written.content, written.reasoning)
            assert [(c.name, c.arguments) for c in read.tool_calls] == [(c.name, c.arguments) for c in calls]
            assert read.errors == []


def test_a_template_that_ends_prompts_with_other_blanks_than_it_shows_later_keeps_its_control_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a widely used text for DeepSeek-V3 does: blanks of its indentation, other ones at the end of a prompt."""
    text = (FOLDER / "deepseek_v3.jinja").read_text()
    for mine, blanks in (
        (
            '{%- if ns.in_results %}{{- "<｜tool▁outputs▁end｜>" }}',
            '{%- if ns.in_results %}{{- "  <｜tool▁outputs▁end｜>" }}',
        ),
        (
            '{{- "  <｜tool▁outputs▁end｜>" }}{%- endif %}\n{%- if add',
            '{{- " <｜tool▁outputs▁end｜>\n" }}{%- endif %}\n{%- if add',
        ),
        ('{{- message.content or "" }}', '{{- "    " + message.content }}'),
    ):
        assert mine in text
        text = text.replace(mine, blanks)
    (tmp_path / "deepseek_v3.jinja").write_text(text)
    monkeypatch.setattr(families, "PUBLISHED", [tmp_path])
    monkeypatch.setattr(families, "_template", cache(families._template.__wrapped__))
    for seed in range(SEEDS):
        for check in play(FAMILIES["deepseek_v3"], "off", seed):
            assert check.found == check.wanted


def test_every_template_is_tested_and_named_in_the_readme() -> None:
    files = {path.stem for path in FOLDER.glob("*.jinja")}
    assert files - {"smollm2"} == set(FAMILIES), "SmolLM2's shows no tools: tests/sampler/test_tool_prompt.py"
    readme = (FOLDER / "README.md").read_text()
    assert all(f"`{name}.jinja`" in readme for name in files)


# ---------------------------------------------------------------------- what is kept, and what is not

QUESTION = [{"role": "user", "content": "What is A?"}]
AGAIN = [{"role": "user", "content": "And B?"}]


def as_spelled(context: Context, text: str) -> list[int]:
    """Ids that no tokenizer would give: one token a character, but for the added tokens."""
    template = context.template
    pieces = template.added_re.split(text)
    tokens = template.added_re.findall(text)
    ids: list[int] = []
    for index, piece in enumerate(pieces):
        ids += [i for character in piece for i in template.encode(character)]
        ids += [template.token_id(token) or 0 for token in tokens[index : index + 1]]
    return ids


def test_a_kept_reply_consists_of_its_sampled_ids() -> None:
    """Qwen3 drops the reasoning; the answer behind it stays as it was sampled, in tokens that no tokenizer would choose."""
    context = Context(FAMILIES["qwen3"].template("on"), TOOLS)
    first = context.start(QUESTION).added
    answer = as_spelled(context, "It is five.")
    output = [*as_spelled(context, "<think>\nhm\n</think>\n\n"), *answer, context.format.end_ids[0]]
    prompt = context.extend(output, AGAIN)
    assert prompt.cause is BranchCause.TEMPLATE_REWRITE
    assert prompt.shared_length == len(first)
    assert prompt.added[: len(answer)] == answer
    assert answer != context.template.encode("It is five.")
    text = context.template.decode(prompt.added)
    assert text.startswith("It is five.<|im_end|>\n<|im_start|>user\nAnd B?<|im_end|>")


def test_a_token_of_blanks_and_text_is_cut_and_only_it_is_encoded_anew() -> None:
    context = Context(FAMILIES["qwen3"].template("on"), TOOLS)
    context.start(QUESTION)
    template = context.template
    mixed = template.encode(" the")
    assert len(mixed) == 1
    answer = as_spelled(context, " answer")
    output = [*as_spelled(context, "<think>\nhm\n</think>"), *mixed, *answer, context.format.end_ids[0]]
    prompt = context.extend(output, AGAIN)
    the = template.encode_plain("the")
    assert prompt.added[: len(the) + len(answer)] == the + answer


def test_reasoning_within_one_question_is_kept() -> None:
    context = Context(FAMILIES["qwen3"].template("on"), TOOLS)
    context.start(QUESTION)
    text = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "lookup", "arguments": {}}\n</tool_call>'
    result = {"role": "tool", "name": "lookup", "tool_call_id": "call00000", "content": "5"}
    assert context.extend(as_spelled(context, text), [result]).cause is BranchCause.CLEAN
    assert context.extend(as_spelled(context, "<think>\nso\n</think>\n\nFive."), AGAIN).cause is not BranchCause.CLEAN


@pytest.mark.parametrize(
    "text", ['<tool_call>{"name":"lookup","arguments":{}}</tool_call>', "<tool_call>\nbroken", " \n", ""]
)
def test_a_replys_spelling_causes_no_branch(text: str) -> None:
    context = Context(FAMILIES["qwen25"].template("off"), TOOLS)
    before = context.start(QUESTION).added
    output = as_spelled(context, text)
    prompt = context.extend(output, [{"role": "tool", "name": "lookup", "tool_call_id": "call00000", "content": "5"}])
    assert prompt.cause is BranchCause.CLEAN
    assert context.ids[: len(before) + len(output)] == before + output


def test_an_empty_block_of_reasoning_that_a_template_drops_is_a_branch() -> None:
    context = Context(FAMILIES["qwen3"].template("on"), TOOLS)
    context.start(QUESTION)
    result = {"role": "tool", "name": "lookup", "tool_call_id": "call00000", "content": "5"}
    prompt = context.extend(as_spelled(context, "<think>\n\n</think>\n\nI look."), [result])
    assert prompt.cause is BranchCause.TEMPLATE_REWRITE
    assert "<think>" not in context.template.decode(context.ids)
    assert "I look.<|im_end|>" in context.template.decode(context.ids)


def test_a_reply_is_cut_before_another_roles_token_at_its_end() -> None:
    """GLM ends a call with <|observation|>; a model that wrote <|user|> after a call is corrected, in a branch."""
    family = FAMILIES["glm45"]
    result = {"role": "tool", "name": "lookup", "tool_call_id": "call00000", "content": "5"}
    context = Context(family.template("off"), TOOLS)
    context.start(QUESTION)
    wrong, right = (context.template.token_id(text) for text in ("<|user|>", "<|observation|>"))
    assert {wrong, right} <= set(context.format.end_ids)
    output = as_spelled(context, "\n<tool_call>lookup\n</tool_call>")
    before = list(context.ids)
    prompt = context.extend([*output, wrong or 0], [result])
    assert (prompt.cause, prompt.shared_length) == (BranchCause.TEMPLATE_REWRITE, len(before) + len(output))
    assert prompt.added[0] == right
    kept = Context(family.template("off"), TOOLS, rewrites="keep")
    kept.start(QUESTION)
    assert kept.extend([*output, wrong or 0], [result]).added == prompt.added
    assert kept.ids == [*before, *output, wrong, *prompt.added]


def test_a_template_with_one_call_per_turn_works_for_a_model_that_writes_two() -> None:
    family = FAMILIES["llama31"]
    context = Context(family.template("off"), TOOLS)
    before = context.start(QUESTION).added
    calls = [Call(f"c{i:08d}", "lookup", {}) for i in range(2)]
    output = as_spelled(context, "; ".join('{"name": "lookup", "parameters": {}}' for _ in calls))
    results = [{"role": "tool", "name": "lookup", "tool_call_id": c.id, "content": c.id} for c in calls]
    prompt = context.extend(output, results)
    assert (prompt.cause, prompt.shared_length) == (BranchCause.CLEAN, len(before) + len(output))
    added = context.template.decode(prompt.added)
    assert added.count("<|start_header_id|>ipython<|end_header_id|>") == 2
    assert all(c.id in added for c in calls)


def test_a_date_in_the_template_does_not_change_within_an_episode() -> None:
    family = FAMILIES["qwen25"]
    template = family.template("off")
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
    text = "{{ strftime_now('%f') }}" + turns
    context = Context(type(template).build(template.tokenizer, text, template.special_tokens))
    context.start(QUESTION)
    for _ in range(3):
        assert context.extend(as_spelled(context, "yes"), AGAIN).cause is BranchCause.CLEAN


def test_a_rewritten_history_shares_the_longest_prefix_and_keeps_the_ids_of_kept_replies() -> None:
    context = Context(FAMILIES["qwen3"].template("on"), TOOLS)
    context.start(QUESTION)
    reply, last = {"role": "assistant", "content": "Five."}, {"role": "assistant", "content": "Six."}
    output = as_spelled(context, "Five.")
    context.extend(output, AGAIN, reply)
    before = list(context.ids)
    summary = {"role": "user", "content": "Summary: A is five."}
    prompt = context.restart([*QUESTION, reply, summary], as_spelled(context, "Six."), last)
    assert prompt.cause is BranchCause.CONTEXT_POLICY
    assert before[: prompt.shared_length] + prompt.added == context.ids
    at = len(context.template.render_ids(QUESTION, TOOLS, True))
    assert context.ids[at : at + len(output)] == output
    assert prompt.shared_length > at + len(output)
    assert context.restart([*QUESTION, reply, *AGAIN, last, summary]).cause is BranchCause.CONTEXT_POLICY
    assert "Six.<|im_end|>" in context.template.decode(context.ids)


def test_a_fork_is_independent_of_its_context() -> None:
    alone, watched = (Context(FAMILIES["qwen3"].template("on"), TOOLS) for _ in range(2))
    for context in (alone, watched):
        context.start(QUESTION)
    for text in ("Five.", "Six.", "Seven."):
        output = as_spelled(alone, f"<think>\nhm\n</think>\n\n{text}")
        fork = watched.fork()
        looked = fork.extend(output, AGAIN)
        watched.fork().restart(QUESTION, output)
        assert alone.extend(output, AGAIN) == watched.extend(output, AGAIN) == looked
        assert alone.ids == watched.ids == fork.ids
