"""The text that a score is of."""

from dataclasses import dataclass

from sampler.core.parsers.reasoning import behind_reasoning
from sampler.core.rendering.reply_message import prefix_of
from shared.documents import DispatchedSamplingTask


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A reply, or a text that an agent returned. `in_reasoning`: the prompt opened its reasoning."""

    text: str
    in_reasoning: bool = False

    @property
    def answer_text(self) -> str:
        """The text outside of its reasoning, where the answer is looked for."""
        return behind_reasoning(self.text, in_reasoning=self.in_reasoning)

    @classmethod
    def of_reply(cls, dispatch: DispatchedSamplingTask) -> "ScoredText":
        """Of an answered request, with the beginning that its client wrote."""
        assert dispatch.response is not None, "an answered request has a reply"
        text = prefix_of(dispatch.messages) + dispatch.response.text
        return cls(text, dispatch.response.in_reasoning)


NOTHING = ScoredText("")
