"""A bounded cache: the least recently used values leave it first, by their sizes."""

import random

from shared.bounded_cache import BoundedCache


def test_the_least_recently_used_values_leave_first() -> None:
    cache = BoundedCache[str](3)
    for key in "abc":
        cache.put(key, key.upper())
    assert cache.get("a") == "A"
    cache.put("d", "D")
    assert [key for key in "abcd" if key in cache] == ["a", "c", "d"]
    assert cache.get("b") is None


def test_the_newest_value_stays_even_if_it_is_larger_than_all() -> None:
    cache = BoundedCache[bytes](10, len)
    cache.put("small", bytes(4))
    cache.put("large", bytes(40))
    assert (len(cache), cache.total) == (1, 40)
    assert cache.get("large") == bytes(40)


def test_the_total_is_that_of_the_values_and_within_the_bound() -> None:
    chance, cache = random.Random(1), BoundedCache[bytes](1000, len)
    for _ in range(2000):
        key = str(chance.randrange(60))
        if cache.get(key) is None:
            cache.put(key, bytes(chance.randrange(1, 90)))
        present = [cache.get(str(number)) for number in range(60)]
        assert cache.total == sum(len(value) for value in present if value is not None) <= 1000
    cache.clear()
    assert (len(cache), cache.total) == (0, 0)
