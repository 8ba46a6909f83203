"""Code with feedback: a coder writes Python, a sandbox runs it with the task's tests, a reviewer reads both.

    Coder ─▶ code ─▶ the tool `run` of MCP-Docker's python server ─┬─ all tests passed: the end
      ▲                                                            └─ what it printed ─▶ Reviewer ─┐
      └──────────────────────────── what it printed, and the review ◀────────────────────────────┘

The score is 1 if a version passed. The tests run in a call of their own, after the code, and end with a word that is made then.
"""

import re
import uuid
from typing import ClassVar

from pydantic import BaseModel

from sampler import ActorSampler, Score, Termination, Turn
from sampler.core.episode.tools import called, tool_session
from sampler.core.tools import ToolSession

BLOCK = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
NO_CODE = "Found no code. Write one block that begins with ```python and ends with ```."
CODER, REVIEWER = "Coder", "Reviewer"


class CodeTask(BaseModel):
    """A task's metadata. `tests`: Python that raises where the code is wrong. `tool`: which runs Python."""

    tests: str
    tool: str = "run"


class CodeSampler(ActorSampler):
    uses_tools: ClassVar[bool] = True

    async def run(self) -> Termination:
        self.passed_in: int | None = None
        async with tool_session(self) as tools:
            note = None
            for number in range(1, (self.task.payload.max_turns or self.config.budget.max_turns) + 1):
                turn = await self.speak(CODER, note=note)
                if (ended := self.ended_by(turn)) is not None or turn is None:
                    return ended or Termination.LENGTH_LIMIT
                passed, note = await self._tried(tools, turn)
                if passed:
                    self.passed_in = number
                    return Termination.ANSWERED
                if (
                    REVIEWER in self.seats
                    and (ended := self.ended_by(await self.speak(REVIEWER, note=note))) is not None
                ):
                    return ended
        return Termination.TURNS_LIMIT

    async def evaluate_record(self) -> Score:
        passed = self.passed_in is not None
        self.add_metric("versions", self.passed_in or 0)
        return Score(float(passed), {"reason": f"version {self.passed_in} passed" if passed else "no version passed"})

    async def _tried(self, tools: ToolSession, turn: Turn) -> tuple[bool, str]:
        """Whether all tests passed, and what the seats read of it."""
        if not (found := BLOCK.findall(turn.text)):
            return False, NO_CODE
        task, word = self.own_payload(CodeTask), uuid.uuid4().hex
        calls = []
        for code in (found[-1], f"{task.tests}\nprint({word!r})"):
            arguments = {"code": code}
            result = await tools.call(task.tool, arguments)
            calls.append(called(task.tool, arguments, result))
            if result.is_error:
                break
        self.add_tool_calls(calls, turn=turn)
        printed = "\n".join(call.result for call in calls).replace(word, "").strip()
        return calls[-1].result.rstrip().endswith(word), f"It was run with the tests, and printed:\n{printed}"
