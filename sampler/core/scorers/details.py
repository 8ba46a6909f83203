"""The explanation stored with a score (`reward_details` of the record):

scorer      its name, even if the task names none
extracted   the answer found in the reply; None: none
expected    the accepted answers; only the first of very many
reason      why: given by every scorer here
…           further details of the scorer, which take precedence over these
"""

from collections.abc import Mapping
from typing import Any

from shared.outside_text import clipped

MOST_EXPECTED = 20
LONGEST_EXPECTED = 500  # characters of one answer
LONGEST_EXTRACTED = 2_000
LONGEST_REASON = 300
VOTES, DISAGREEMENT = "votes", "judge_disagreement"  # of a judge that was asked several times
FORMS = {"answer": "<answer>…</answer>", "boxed": "\\boxed{…}"}


def explained(scorer: str, answer: str | None, accepted: tuple[str, ...], details: Mapping[str, Any]) -> dict[str, Any]:
    expected = [clipped(one, LONGEST_EXPECTED) for one in accepted[:MOST_EXPECTED]]
    if len(accepted) > MOST_EXPECTED:
        expected.append(f"… and {len(accepted) - MOST_EXPECTED} more")
    extracted = None if answer is None else clipped(answer, LONGEST_EXTRACTED)
    return {"scorer": scorer, "extracted": extracted, "expected": expected, **details}


def no_answer(payload: Mapping[str, Any]) -> str:
    """The reason, with the expected form of the task's answer."""
    form = FORMS.get(str(payload.get("answer_schema")))
    return f"no answer: the last reply has no {form} with something in it" if form else "no answer"


def accepted_ones(accepted: tuple[str, ...]) -> str:
    """Accepted answers as worded in a reason: 'Paris', "each of the 3 accepted answers"."""
    if not accepted:
        return "what is right: the task has no answer"
    return quoted(accepted[0]) if len(accepted) == 1 else f"each of the {len(accepted)} accepted answers"


def quoted(text: str) -> str:
    return repr(clipped(text, LONGEST_REASON // 3))
