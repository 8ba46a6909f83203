"""Which GPUs each policy's trainer and engines use: as the setting `gpus` says, or shared out. A pure function of the numbers.

one GPU for a policy      trainer and engine use it by turns
more                      the first half is the trainer's, each other one an engine
no trainer here           each one an engine         (frozen, only_evaluate, JOIN)
no engines here           all are the trainer's      (ENGINE_URLS, ENGINE=none or local)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import PrivateAttr

from shared.errors import ConfigError
from tandem.launch.gpus import GpuSettings, PolicyGpus

SHARED_FRACTION = 0.75  # of memory, for an engine on a trainer's GPU: contexts of both take the rest


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a policy starts on this machine. `heads`: its model's attention heads, None if unknown."""

    policy: str
    trains: bool = True
    engines: bool = True
    heads: int | None = None


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """One engine. `shared_device`: name of the device that it has by turns with a trainer; None: it has its own."""

    gpus: tuple[int, ...]
    shared_device: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """One policy's GPUs. `shared_device`: of its trainer, if an engine uses one of its GPUs."""

    trainer: tuple[int, ...]
    engines: tuple[EnginePlace, ...]
    shared_device: str | None = None


def place(count: int, needs: Sequence[Wanted], given: Mapping[str, PolicyGpus]) -> dict[str, Placement]:
    """The GPUs 0 to `count` - 1, by policy; {} without GPUs. Raises ConfigError, which names the field."""
    if given:
        _check_given(count, needs, given)
    if not count:
        return {}
    chosen = dict(given) if given else _shared_out(count, needs)
    _check_overlaps(chosen)
    owners = {gpu: policy for policy, gpus in chosen.items() for gpu in gpus.trainer}
    placements = {}
    for policy, gpus in chosen.items():
        engines = tuple(_engine(policy, number, engine, owners) for number, engine in enumerate(gpus.engines))
        placements[policy] = Placement(tuple(gpus.trainer), engines)
    names = {engine.shared_device for one in placements.values() for engine in one.engines}
    return {
        policy: Placement(one.trainer, one.engines, name if (name := _device_of(policy)) in names else None)
        for policy, one in placements.items()
    }


def lines(placed: Mapping[str, Placement]) -> list[str]:
    """The placement for people: a line a policy."""
    return [f"GPUs of policy {policy}: {_text(one)}" for policy, one in placed.items()]


def _text(one: Placement) -> str:
    parts = [f"trainer {_numbers(one.trainer)}"] if one.trainer else []
    for engine in one.engines:
        turns = " by turns with the trainer" if engine.shared_device else ""
        parts.append(f"engine {_numbers(engine.gpus)}{turns}")
    return "; ".join(parts)


def _numbers(gpus: Sequence[int]) -> str:
    return ",".join(map(str, gpus))


def _shared_out(count: int, needs: Sequence[Wanted]) -> dict[str, PolicyGpus]:
    users = [one for one in needs if one.trains or one.engines]
    if count < len(users):
        raise ConfigError(
            f"{len(users)} policies on {count} GPUs: expected at least one GPU for each, or engines elsewhere (engine_urls)"
        )
    blocks, start = {}, 0
    for number, one in enumerate(users):
        size = count // len(users) + (number < count % len(users))
        blocks[one.policy] = _of_block(list(range(start, start + size)), one)
        start += size
    return blocks


def _of_block(block: list[int], one: Wanted) -> PolicyGpus:
    if not one.engines:
        return PolicyGpus(trainer=block)
    if not one.trains:
        return PolicyGpus(engines=[[gpu] for gpu in block])
    if len(block) == 1:
        return PolicyGpus(trainer=block, engines=[block])
    half = len(block) // 2
    return PolicyGpus(trainer=block[:half], engines=[[gpu] for gpu in block[half:]])


def _engine(policy: str, number: int, gpus: Sequence[int], owners: Mapping[int, str]) -> EnginePlace:
    trainers = sorted({owners[gpu] for gpu in gpus if gpu in owners})
    if len(trainers) > 1:
        raise ConfigError(
            f"gpus.{policy}.engines.{number}: GPUs {_numbers(gpus)} belong to the trainers of {' and '.join(trainers)}; an "
            "engine takes turns with one trainer"
        )
    return EnginePlace(tuple(gpus), _device_of(trainers[0]) if trainers else None)


def _device_of(policy: str) -> str:
    """The lease lies in the run's database, and is of all GPUs of this trainer on all machines."""
    return f"trainer-{policy}"


def _check_given(count: int, needs: Sequence[Wanted], given: Mapping[str, PolicyGpus]) -> None:
    known = {one.policy: one for one in needs}
    strange = [policy for policy in given if policy not in known]
    if strange:
        raise ConfigError(f"gpus.{strange[0]}: there is no such policy; expected {', '.join(known)}")
    for policy, one in known.items():
        gpus = given.get(policy, PolicyGpus())
        for field, here, needed in (("trainer", gpus.trainer, one.trains), ("engines", gpus.engines, one.engines)):
            if needed and not here:
                raise ConfigError(f"gpus.{policy}.{field} is empty; expected the numbers of GPUs")
            if here and not needed:
                raise ConfigError(f"gpus.{policy}.{field}: this launch starts none; expected no GPUs for it")
        groups = {"trainer": gpus.trainer} | {f"engines.{k}": engine for k, engine in enumerate(gpus.engines)}
        for field, numbers in groups.items():
            _check_group(f"gpus.{policy}.{field}", numbers, count)
            if field != "trainer" and one.heads and one.heads % len(numbers):
                raise ConfigError(
                    f"gpus.{policy}.{field}: {len(numbers)} GPUs, but the model has {one.heads} attention heads; expected a "
                    "number of GPUs that divides them (tensor parallelism)"
                )


def _check_group(field: str, numbers: Sequence[int], count: int) -> None:
    if not numbers and field.rpartition(".")[2].isdigit():
        raise ConfigError(f"{field} is empty; expected the numbers of its GPUs")
    for gpu in numbers:
        if not 0 <= gpu < count:
            there = f"this machine has {count} (0 to {count - 1})" if count else "this machine has none"
            raise ConfigError(f"{field}: GPU {gpu} is not there; {there}")
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"{field}: {list(numbers)} names a GPU twice")


def _check_overlaps(chosen: Mapping[str, PolicyGpus]) -> None:
    """A GPU has at most one trainer and one engine."""
    trainers: dict[int, str] = {}
    engines: dict[int, str] = {}
    for policy, gpus in chosen.items():
        places = [(trainers, f"gpus.{policy}.trainer", gpus.trainer)]
        places += [(engines, f"gpus.{policy}.engines.{k}", engine) for k, engine in enumerate(gpus.engines)]
        for taken, field, numbers in places:
            for gpu in numbers:
                if gpu in taken:
                    raise ConfigError(f"{field}: GPU {gpu} is already given to {taken[gpu]}")
                taken[gpu] = field


@dataclass(frozen=True, slots=True)
class Placed:
    """A placement with the names by which CUDA_VISIBLE_DEVICES knows the GPUs. `given_fraction`: the setting."""

    placement: Placement
    names: tuple[str, ...]
    given_fraction: float | None = None

    def mem_fraction(self, engine: EnginePlace) -> float | None:
        """Of SGLang; None: its own choice."""
        return self.given_fraction or (SHARED_FRACTION if engine.shared_device else None)

    def visible(self, gpus: Sequence[int]) -> str:
        return ",".join(self.names[gpu] for gpu in gpus)


class PlacedSettings(GpuSettings):
    """The settings, and what they came to: `placed` is of one policy on this machine, None without GPUs."""

    _placed: Placed | None = PrivateAttr(None)

    @property
    def placed(self) -> Placed | None:
        return self._placed

    def give(self, placed: Placed) -> None:
        self._placed = placed
