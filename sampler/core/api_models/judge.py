"""The scorer agent: a language model that decides whether an answer is right.

A scorer with its own question uses `ask`, which fails over from model to model, or a `client` of one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sampler.core.api_models.config import ScorerAgentConfig
from sampler.core.api_models.endpoint import NO_KEY, Endpoint, Message
from sampler.core.api_models.images import ReadImage
from sampler.core.api_models.pool import Answer, ModelPool, Unreadable
from sampler.core.api_models.verdict import read_verdict
from shared.documents.agent_use import AgentUse
from shared.documents.content import Block

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")

SHORTEST_KEY = 8
CLIENT_RETRIES = 2  # the client's own default
# A policy that writes without end has a wrong answer; the judge must not fail on its length.
MAX_ANSWER_CHARS = 16_000
AGAIN = 'That is no verdict. Reply with one word, "Correct" or "Incorrect", and nothing else.'


@dataclass(frozen=True)
class Verdict:
    is_correct: bool
    reply: str
    use: AgentUse


class Judge:
    """`read_image`: as of `ModelPool`."""

    def __init__(self, config: ScorerAgentConfig, read_image: ReadImage | None = None) -> None:
        self.config = config
        self._pool = ModelPool("scorer_agent", config, read_image)
        self._clients: dict[int, AsyncOpenAI] = {}

    async def verdict(
        self, question: str, labeled_answer: str, pred_answer: str, images: Sequence[Block] = ()
    ) -> Verdict:
        """`images`: references, which stand before the prompt. Raises AgentFailed if no model gave a verdict."""
        prompt = self.config.judge_prompt_template.format(
            question=question, labeled_answer=labeled_answer, pred_answer=_shortened(pred_answer)
        )
        content = [*images, {"type": "text", "text": prompt}] if images else prompt
        answer = await self._pool.ask([{"role": "user", "content": content}], _read)
        return Verdict(answer.value, answer.text, answer.use)

    async def ask(self, messages: Sequence[Message]) -> str:
        """The first model's usable reply to your own messages, which may have references to images. Raises AgentFailed."""
        return (await self._pool.ask(messages, str)).text

    async def ask_for(self, messages: Sequence[Message], read: Callable[[str], T], first: int = 0) -> Answer[T]:
        """The first reply that `read` accepts; it raises Unreadable for others, with what is expected. `first`: the model that
        is asked first. Raises AgentFailed."""
        return await self._pool.ask(messages, read, first)

    def client(self, index: int = 0) -> "AsyncOpenAI":
        """An authenticated client of `config.models[index]` with its time-out. Shared; closed with the sampler."""
        client = self._clients.get(index)
        if client is None or client.is_closed():
            model = self.config.models[index]
            client = Endpoint(model, self.config.timeout_of(model)).new_client(CLIENT_RETRIES)
            self._clients[index] = client
        return client

    def plain_config(self) -> dict[str, Any]:
        """The file's section as AgentRL's scorers read it, including API keys, since they create their own clients."""
        plain = self.config.model_dump(mode="json")
        for section, model in zip(plain["models"], self.config.models, strict=True):
            section["api_key"] = HiddenKey(model.api_key.get_secret_value() if model.api_key else NO_KEY)
        return plain

    def keys(self) -> list[str]:
        """API keys to remove from texts for people. Shorter ones are placeholders such as `none`, which may occur in any text."""
        keys = [model.api_key.get_secret_value() for model in self.config.models if model.api_key]
        return [key for key in keys if len(key) >= SHORTEST_KEY]

    async def close(self) -> None:
        await self._pool.close()
        for client in self._clients.values():
            await client.close()


class HiddenKey(str):
    """An API key that is not shown when its dict is printed or logged."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _read(text: str) -> bool:
    verdict = read_verdict(text)
    if verdict is None:
        raise Unreadable(AGAIN)
    return verdict


def _shortened(answer: str) -> str:
    """Beginning and end of an over-long answer."""
    if len(answer) <= MAX_ANSWER_CHARS:
        return answer
    half = MAX_ANSWER_CHARS // 2
    return f"{answer[:half]}\n[… {len(answer) - 2 * half} characters left out …]\n{answer[-half:]}"
