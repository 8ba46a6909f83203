"""Routed experts in a request to our engines' API."""

import pytest

from sampler.engine.api.errors import ApiError
from sampler.engine.api.generation import Limits
from sampler.engine.api.protocol import parse_generate

BODY = {"input_ids": [1, 2, 3], "return_routed_experts": True}


def limits(*, experts: bool) -> Limits:
    return Limits(64, 100, frozenset(), lambda text: [1], experts=experts)


def test_experts_are_returned_from_the_requested_position() -> None:
    (whole,), _ = parse_generate(BODY, limits(experts=True))
    (part,), _ = parse_generate(BODY | {"routed_experts_start_len": 3}, limits(experts=True))
    (none,), _ = parse_generate({"input_ids": [1, 2, 3]}, limits(experts=True))
    assert (whole.experts_start, part.experts_start, none.experts_start) == (0, 3, None)


@pytest.mark.parametrize("start", [-1, 4, 1.0, True, "0"])
def test_a_position_outside_of_the_prompt_is_refused(start: object) -> None:
    with pytest.raises(ApiError, match="expected 0 to 3, the number of input tokens"):
        parse_generate(BODY | {"routed_experts_start_len": start}, limits(experts=True))


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(ApiError, match="return_routed_experts is not supported by the local engine for this model"):
        parse_generate(BODY, limits(experts=False))
