"""A prompt's token ids together with their JSON, so that a thread's next request encodes only its new ids.

`json.dumps` takes 70 ns for an id: 9 ms for 128,000 of them, in every turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import to_json


@dataclass(frozen=True, slots=True)
class EncodedIds:
    """`text`: the JSON of `ids` without its brackets."""

    ids: Sequence[int]
    text: bytes

    @classmethod
    def of(cls, ids: "Sequence[int] | EncodedIds") -> "EncodedIds":
        return ids if isinstance(ids, EncodedIds) else NO_IDS.grown_to(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def grown_to(self, ids: Sequence[int]) -> "EncodedIds":
        """`ids`, which begin with those of here."""
        more = to_json(list(ids[len(self.ids) :]))[1:-1]
        return EncodedIds(ids, b"%s,%s" % (self.text, more) if self.text and more else self.text or more)

    def then(self, ids: Sequence[int]) -> "EncodedIds":
        """With more ids behind them."""
        return self.grown_to([*self.ids, *ids]) if ids else self


NO_IDS = EncodedIds((), b"")
