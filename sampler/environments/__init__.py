"""Environments as services: worlds that run in processes of their own, behind AgentRL's controller protocol.

    sampler ──HTTP: start, interact, cancel──▶ python -m sampler.environments ──pipe──▶ workers, with the environments' packages
       └── or a foreign controller, at its URL

Worker side (standard library only, so that it runs in any virtual environment): `environment`, `worker`, `adapters`.
Guide: docs/bring/environments.md.
"""

from typing import TYPE_CHECKING

from shared.lazy_names import lazy_names

if TYPE_CHECKING:
    from sampler.environments.environment import Environment, Step, TaskRefused
    from sampler.environments.sampler import EnvironmentSampler

__all__ = ["Environment", "EnvironmentSampler", "Step", "TaskRefused"]
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Environment", "Step", "TaskRefused"), "sampler.environments.environment"),
        "EnvironmentSampler": "sampler.environments.sampler",
    },
)
