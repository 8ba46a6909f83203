"""Settings that fit a machine without GPUs: small steps, from which a small model learns most per sample, and as much of the
model as the memory trains.

    memory   all parameters in float32, else adapters of rank 16, else adapters of a base in 4 bits; rows half as long where the
             activations are what does not fit
    step     2 groups of 8 episodes: SmolLM2-135M learns more than in steps of 8 groups, from half of the samples
    rate     1e-5 for all parameters, 1e-4 for adapters, constant

What is given (a flag, a variable, the YAML) stays.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tandem.launch.trainer_memory import MemoryParts, TrainedAs
from tandem.plan.speed import Speed

GROUPS = 2
MEMORY_SHARE = 0.8  # of the machine's, for engine and trainer
ROWS = (2048, 1024, 512)
ADAPTER_RATE, FULL_RATE = 1e-4, 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """`tokens`: that an episode may sample; `prompt`: of a task; `at_once`: episodes that run in parallel."""

    groups: int
    generations: int
    tokens: int
    prompt: int
    at_once: int

    @property
    def episodes(self) -> int:
        return self.groups * self.generations

    @property
    def computed(self) -> int:
        """Tokens of the trees: a group's prompt once."""
        return self.groups * self.prompt + self.episodes * self.tokens

    def sampling_s(self, speed: Speed) -> float:
        return speed.sampling_s(self.episodes, self.tokens, self.at_once)

    def learning_s(self, speed: Speed) -> float:
        return speed.learning_s(self.computed, self.episodes * self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    step: PlannedStep
    trained: TrainedAs
    row: int  # max_tokens_per_row
    parts: MemoryParts
    fits: bool  # whether the machine's memory holds it

    @property
    def rate(self) -> float:
        return ADAPTER_RATE if self.trained.lora_rank else FULL_RATE


def propose(
    step: PlannedStep,
    trained: TrainedAs,
    given: Mapping[str, object],
    predicted: Callable[[TrainedAs, int], MemoryParts],
    *,
    room: int,
) -> Proposal:
    """`step`, `trained`: as given and by default; `given`: names of settings that stay. `predicted(trained, row)`: memory of the
    trainer; `room`: bytes for it."""
    if "groups_per_step" not in given:
        step = replace(step, groups=GROUPS)
    tried = [(way, row, predicted(way, row)) for way in _ways(trained, given) for row in _rows(given)]
    fitting = next((one for one in tried if one[-1].total <= room), None)
    way, row, parts = fitting or min(tried, key=lambda one: one[-1].total)
    return Proposal(step=step, trained=way, row=row, parts=parts, fits=fitting is not None)


def _ways(trained: TrainedAs, given: Mapping[str, object]) -> Iterator[TrainedAs]:
    yield trained
    if "lora_rank" not in given:
        yield replace(trained, lora_rank=16)
        if "base_quantization" not in given:
            yield replace(trained, lora_rank=16, base_quantization="nf4")


def _rows(given: Mapping[str, object]) -> tuple[int, ...]:
    row = given.get("max_tokens_per_row")
    return (row,) if isinstance(row, int) else ROWS
