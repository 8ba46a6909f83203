"""A cache bounded by the total size of its values: the least recently used ones leave it first."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """`most`: of all sizes together; the newest value stays even if it is larger. `size`: of a value; 1, unless given."""

    def __init__(self, most: int, size: Callable[[V], int] = lambda value: 1) -> None:
        self.total = 0
        self._most, self._size = most, size
        self._values: OrderedDict[str, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: str) -> V | None:
        """It becomes the most recently used one."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: str, value: V) -> None:
        """A key that is there has its value already: it stays."""
        if key not in self._values:
            self._values[key] = value
            self.total += self._size(value)
        while self.total > self._most and len(self._values) > 1:
            self.total -= self._size(self._values.popitem(last=False)[1])

    def clear(self) -> None:
        self._values.clear()
        self.total = 0
