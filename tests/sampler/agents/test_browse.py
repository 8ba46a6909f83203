"""Lengths are counted in the policy's tokens: bytes, characters, or words."""

from collections.abc import Callable

import pytest

from sampler.core.api_models.browse import BrowseAgent
from sampler.core.api_models.config import BrowseAgentConfig
from tests.sampler.agents.agents import QUICK, models
from tests.sampler.agents.endpoints import Service, endpoint

OffsetsOf = list[tuple[int, int]]


def halves(text: str) -> OffsetsOf:
    """A character is two tokens."""
    return [(at + half, at + 1) for at in range(len(text)) for half in (0, 1)]


def characters(text: str) -> OffsetsOf:
    return [(at, at + 1) for at in range(len(text))]


def fours(text: str) -> OffsetsOf:
    return [(at, min(at + 4, len(text))) for at in range(0, len(text), 4)]


def whole(text: str) -> OffsetsOf:
    return [(0, len(text))]


def agent(offsets: Callable[[str], OffsetsOf], service: Service, **config: object) -> BrowseAgent:
    given = QUICK | {"models": models([service]), "browse_tools": ["visit"]} | config
    return BrowseAgent(BrowseAgentConfig.model_validate(given), offsets)


@pytest.mark.parametrize(
    ("offsets", "text", "is_long"),
    [
        (characters, "x" * 10, False),
        (characters, "x" * 11, True),
        (characters, "é" * 10, False),  # 20 bytes
        (characters, "é" * 11, True),
        (halves, "é" * 5, False),
        (halves, "é" * 6, True),
        (fours, "x" * 40, False),
        (fours, "x" * 41, True),
        (whole, "x" * 80, False),
        (whole, "x" * 81, True),  # more than 8 characters a token are not counted on
    ],
)
async def test_a_result_is_long_above_min_prompt_length_tokens(
    offsets: Callable[[str], OffsetsOf], text: str, is_long: bool
) -> None:
    one = agent(offsets, Service([], "http://x"), min_prompt_length=10)
    assert (await one.purpose_for("visit", "p", text) is not None) is is_long


@pytest.mark.parametrize(("offsets", "most"), [(characters, 400), (fours, 1600), (whole, 3200)])
async def test_the_middle_of_a_text_above_max_prompt_length_tokens_is_cut(
    offsets: Callable[[str], OffsetsOf], most: int
) -> None:
    async with endpoint("says ok") as service:
        one = agent(offsets, service, min_prompt_length=10, max_prompt_length=400)
        for text in ("~" * most, "B" + "~" * most + "E"):
            await one.summarize(text, "Where is it?")
        await one.close()
    fits, cut = service.prompts()
    assert "~" * most in fits
    assert "left out" not in fits
    assert "characters left out" in cut
    assert most * 0.5 < cut.count("~") <= most
    assert cut.count("Where is it?") == 2
