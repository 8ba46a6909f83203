"""The first messages of an episode: the system prompt with the answer's form, and the question.

A scorer extracts the answer from the last reply by the task's `answer_schema`; a model that does not know the form scores 0.
So the setting `answer_instruction` adds the form to the system prompt:

    auto           the sentence of `INSTRUCTIONS` for the task's schema
    none           nothing: for models that were trained without one
    another text   that text
"""

from collections.abc import Sequence
from typing import Any

from sampler.core.scorers import scorer_needs_answer
from shared.documents import TaskPayload

INSTRUCTIONS = {
    "answer": "When you know the answer, write it between <answer> and </answer>, like this: <answer>your answer</answer>",
    "boxed": "When you know the answer, write it inside \\boxed{}, like this: \\boxed{your answer}",
}
MARKS = {"answer": ("<answer>",), "boxed": ("\\boxed", "\\fbox")}  # marks of a query that already specifies the form

AUTO, NONE = "auto", "none"


def opening_messages(
    payload: TaskPayload, *, scorers: Sequence[str], system_prompt: str | None, answer_instruction: str
) -> list[dict[str, Any]]:
    """The task's own `system` or else `system_prompt`, then the answer's form; and the query as the user's message."""
    system = payload.system or system_prompt or ""
    instruction = _instruction(payload, scorers, system, answer_instruction)
    parts = [part for part in (system, instruction) if part]
    opening = [{"role": "system", "content": "\n\n".join(parts)}] if parts else []
    return [*opening, {"role": "user", "content": payload.query_blocks or payload.query}]


def _instruction(payload: TaskPayload, scorers: Sequence[str], system: str, setting: str) -> str:
    """Empty if disabled, if every scorer reads the whole reply, or if the task already specifies the form."""
    if setting == NONE or not any(map(scorer_needs_answer, scorers)):
        return ""
    if setting != AUTO:
        return setting
    given = system + payload.query
    if any(mark in given for mark in MARKS[payload.answer_schema]):
        return ""
    return INSTRUCTIONS[payload.answer_schema]
