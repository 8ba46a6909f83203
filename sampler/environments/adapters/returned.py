"""What a Gymnasium world returns, checked where it returns it: wrappers that unpack it would raise in words of their own."""

from dataclasses import dataclass
from typing import Any

from sampler.environments.checked_step import WrongStep, number, truth
from shared.scores import EXPECTED

STEP = ("observation", "reward", "terminated", "truncated", "info")
RESET = ("observation", "info")


@dataclass(frozen=True, slots=True)
class StepValues:
    observation: Any
    reward: float
    terminated: bool
    truncated: bool


def step_values(returned: Any) -> StepValues:
    """Raises WrongStep."""
    observation, reward, terminated, truncated, _ = _parts("step", returned, STEP)
    return StepValues(
        observation,
        number("reward", reward, EXPECTED),
        truth("terminated", terminated),
        truth("truncated", truncated),
    )


def reset_values(returned: Any) -> Any:
    """The observation. Raises WrongStep."""
    return _parts("reset", returned, RESET)[0]


def check_returns(env: Any) -> None:
    """Let the world itself raise WrongStep for a wrong value, beneath all wrappers."""
    world = env.unwrapped
    reset, step = world.reset, world.step

    def checked_reset(*args: Any, **given: Any) -> Any:
        returned = reset(*args, **given)
        reset_values(returned)
        return returned

    def checked_step(action: Any) -> Any:
        returned = step(action)
        step_values(returned)
        return returned

    try:
        world.reset, world.step = checked_reset, checked_step
    except AttributeError:  # of fixed attributes: what its wrappers return is checked alone
        return


def _parts(method: str, result: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(result, tuple) or len(result) != len(names):
        raise WrongStep(f"what {method} returned", result, f"{len(names)} values: {', '.join(names)}")
    return result
