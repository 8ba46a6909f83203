"""Which engine is off: far from the others, by enough tokens, and no older on purpose."""

from collections.abc import Mapping

import pytest

from shared.engine_mismatch import FEWEST_TOKENS, by_engine, engine_name, engine_number, engines_off


def metrics(**engines: tuple[float, float, float]) -> dict[str, float | None]:
    """{host: (tokens, mismatch, staleness)}"""
    found: dict[str, float | None] = {"loss/mismatch_mean_nats": 0.1, "loss/trained_tokens": 1000.0}
    for host, (tokens, mismatch, staleness) in engines.items():
        names = ("trained_tokens", "mismatch_mean_nats", "k3_mean", "staleness_mean_steps")
        values = (tokens, mismatch, mismatch**2 / 2, staleness)
        found |= {f"loss_by_engine/{host}:1/{name}": value for name, value in zip(names, values, strict=True)}
    return found


def off(found: Mapping[str, float | None]) -> list[str]:
    return [one.found.engine for one in engines_off(by_engine([found]))]


def test_steps_are_joined_by_their_tokens() -> None:
    found = by_engine([metrics(a=(300.0, 0.01, 1.0), b=(100.0, 0.3, 0.0)), metrics(a=(100.0, 0.05, 3.0)), {}])
    assert [(one.engine, one.tokens) for one in found] == [("a:1", 400.0), ("b:1", 100.0)]
    assert (found[0].mismatch, found[0].staleness) == pytest.approx((0.02, 1.5))
    assert by_engine([{"loss/mismatch_mean_nats": 0.1}]) == []
    assert by_engine([metrics(a=(300.0, 0.01, 1.0)) | {"loss_by_engine/a:1/k3_mean": None}]) == [], "not finite"


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ({"a": (1000.0, 0.001, 0.0), "b": (1000.0, 0.06, 0.0)}, ["b:1"]),
        ({"a": (1000.0, 0.00001, 0.0), "b": (1000.0, 0.02, 0.0)}, []),  # bfloat16 beside float32
        ({"a": (1000.0, 0.04, 0.0), "b": (1000.0, 0.11, 0.0)}, []),  # the policy's own move is in both
        ({"a": (1000.0, 0.04, 0.0), "b": (1000.0, 0.13, 0.0)}, ["b:1"]),
        ({"a": (1000.0, 0.001, 0.0), "b": (FEWEST_TOKENS - 1.0, 0.5, 0.0)}, []),
        ({"a": (1000.0, 0.001, 0.5), "b": (1000.0, 0.5, 1.6)}, []),  # it lags on purpose
        ({"a": (1000.0, 0.9, 0.0), "b": (1000.0, 0.7, 0.0), "c": (10000.0, 0.001, 0.0)}, ["a:1", "b:1"]),
        ({"a": (1000.0, 0.5, 0.0)}, []),
    ],
)
def test_an_engine_is_off_if_it_is_far_from_the_others(
    engines: dict[str, tuple[float, float, float]], expected: list[str]
) -> None:
    assert off(metrics(**engines)) == expected


def test_names_and_numbers_of_engines() -> None:
    urls = [f"http://10.0.0.{at}:30000" for at in range(200)]
    assert engine_name(urls[3]) == "10.0.0.3:30000"
    assert engine_number(None) == 0
    numbers = {engine_number(url) for url in urls}
    assert len(numbers) == 200
    assert all(0 < number < 2**63 for number in numbers)
