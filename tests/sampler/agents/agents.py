"""Agents over endpoints, with short time-outs."""

from collections.abc import Sequence
from typing import Any

from sampler.core.api_models.browse import BrowseAgent
from sampler.core.api_models.config import BrowseAgentConfig, ModelConfig, ScorerAgentConfig
from sampler.core.api_models.judge import Judge
from tests.sampler.agents.endpoints import Service

QUICK: dict[str, Any] = {"timeout": 20, "retry_delay": 0.01, "max_retries": 1, "breaker_failures": 20}
# Time-outs for slow endpoints; the others answer at once on any machine.
SLOW_S = 0.5
SLOW = ("hangs", "drips")


def models(services: Sequence[Service], **fields: Any) -> list[ModelConfig]:
    """Called m1, m2, … in their order."""
    return [
        ModelConfig.model_validate(
            {
                "model": f"m{number}",
                "base_url": service.url,
                "timeout": SLOW_S if set(service.behaviors) & set(SLOW) else None,
            }
            | fields
        )
        for number, service in enumerate(services, start=1)
    ]


def judge(*services: Service, **config: Any) -> Judge:
    return Judge(ScorerAgentConfig.model_validate(QUICK | {"models": models(services)} | config))


def words(text: str) -> list[tuple[int, int]]:
    """OffsetsOf of a tokenizer for which a character is a token."""
    return [(at, at + 1) for at in range(len(text))]


def browser(*services: Service, **config: Any) -> BrowseAgent:
    return BrowseAgent(BrowseAgentConfig.model_validate(QUICK | {"models": models(services)} | config), words)
