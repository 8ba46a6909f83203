"""What a fork goes on from (`TaskPayload.fork`)."""

from typing import Any, Literal

from shared.documents.base import Document


class ForkOrigin(Document):
    """One request of a stored episode, whose prompt is the first prompt of every episode of the fork."""

    dispatch: str
    sampling_params: dict[str, Any]  # of all requests of the fork; `max_new_tokens` is the sampler's
    # What becomes of the tool calls before the turn: there are none; the tools keep nothing; they are made again and compared.
    earlier_calls: Literal["none", "stateless", "replayed"] = "none"

    @property
    def record(self) -> str:
        return self.dispatch.rpartition(":")[0]

    @property
    def turn(self) -> int:
        return int(self.dispatch.rpartition(":")[2])
