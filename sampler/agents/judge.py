"""The scorer agent: a language model that says whether an answer is right."""

from dataclasses import dataclass

from sampler.agents.config import ScorerAgentConfig
from sampler.agents.pool import ModelPool, Unreadable
from sampler.agents.verdict import read_verdict
from shared.agent_use import AgentUse

# A policy that writes for ever has a wrong answer, not a judge that refuses the length.
MAX_ANSWER_CHARS = 16_000
AGAIN = 'That is no verdict. Reply with one word, "Correct" or "Incorrect", and nothing else.'


@dataclass(frozen=True)
class Verdict:
    is_correct: bool
    reply: str
    use: AgentUse


class Judge:
    def __init__(self, config: ScorerAgentConfig) -> None:
        self.config = config
        self._pool = ModelPool("scorer_agent", config)

    async def verdict(self, question: str, labeled_answer: str, pred_answer: str) -> Verdict:
        """Raises AgentFailed when no model gave a verdict."""
        prompt = self.config.judge_prompt_template.format(
            question=question, labeled_answer=labeled_answer, pred_answer=_shortened(pred_answer)
        )
        answer = await self._pool.ask([{"role": "user", "content": prompt}], _read)
        return Verdict(answer.value, answer.text, answer.use)

    async def close(self) -> None:
        await self._pool.close()


def _read(text: str) -> bool:
    found = read_verdict(text)
    if found is None:
        raise Unreadable(AGAIN)
    return found


def _shortened(answer: str) -> str:
    """Beginning and end of an answer beyond the bound."""
    if len(answer) <= MAX_ANSWER_CHARS:
        return answer
    half = MAX_ANSWER_CHARS // 2
    return f"{answer[:half]}\n[… {len(answer) - 2 * half} characters left out …]\n{answer[-half:]}"
