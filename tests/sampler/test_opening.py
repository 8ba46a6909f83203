"""The messages before the first reply: without the answer's form, a model that could solve the task scores 0."""

from typing import Any

import pytest

from sampler.core.episode.opening import INSTRUCTIONS, opening_messages
from sampler.core.scorers.answers import extract_answer
from sampler.scorers import Score, ScoringRequest, register_scorer
from shared.documents import TaskPayload

WHOLE_REPLY = "tests_opening_whole_reply"


@register_scorer(WHOLE_REPLY, needs_answer=False)
async def whole_reply(request: ScoringRequest) -> Score:
    return Score(1.0)


def opening(
    scorer: str = "math", system_prompt: str | None = None, instruction: str = "auto", **task: Any
) -> list[dict[str, Any]]:
    payload = TaskPayload(query=task.pop("query", "What is 2+2?"), **task)
    return opening_messages(payload, scorers=[scorer], system_prompt=system_prompt, answer_instruction=instruction)


@pytest.mark.parametrize("schema", ["answer", "boxed"])
def test_the_system_prompt_specifies_the_form_that_the_scorer_reads(schema: Any) -> None:
    system, question = opening(answer_schema=schema)
    assert system == {"role": "system", "content": INSTRUCTIONS[schema]}
    assert question == {"role": "user", "content": "What is 2+2?"}
    assert extract_answer(INSTRUCTIONS[schema], schema) == "your answer", (
        "the example in the sentence is itself readable"
    )


def test_the_instruction_ends_the_system_prompt_of_the_task_or_of_the_run() -> None:
    assert opening(system_prompt="Be brief.")[0]["content"] == f"Be brief.\n\n{INSTRUCTIONS['answer']}"
    ours = opening(system_prompt="Be brief.", system="You are a chemist.")
    assert ours[0]["content"] == f"You are a chemist.\n\n{INSTRUCTIONS['answer']}"


def test_one_setting_changes_the_instruction_or_switches_it_off() -> None:
    assert opening(instruction="Answer in tags.", query="Say <answer>")[0]["content"] == "Answer in tags."
    assert [message["role"] for message in opening(instruction="none")] == ["user"]
    assert opening(instruction="none", system_prompt="Be brief.")[0]["content"] == "Be brief."


@pytest.mark.parametrize(
    "task",
    [
        {"query": "2+2? Put your final answer within \\boxed{}.", "answer_schema": "boxed"},
        {"query": "2+2?", "system": "Use \\fbox{...}.", "answer_schema": "boxed"},
        {"query": "2+2? Reply with <answer>4</answer>."},
    ],
)
def test_a_task_that_specifies_the_form_gets_no_instruction(task: dict[str, Any]) -> None:
    contents = [message["content"] for message in opening(**task)]
    assert contents == [text for text in (task.get("system"), task["query"]) if text]


def test_a_mark_of_the_other_schema_does_not_count() -> None:
    assert INSTRUCTIONS["answer"] in opening(query="Explain \\boxed{4}.")[0]["content"]


def test_a_scorer_that_reads_the_whole_reply_needs_no_form() -> None:
    assert [message["role"] for message in opening(scorer=WHOLE_REPLY)] == ["user"]
