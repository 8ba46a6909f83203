"""Interleaves several task files into one sequence by weight, each with its own settings.

    tasks:
      epochs: 2
      sources:
        - {name: sums, file: sums.jsonl, weight: 2, num_generations: 8, max_turns: 3, scorer: math, tools: [calculator]}
        - {name: boxes, file: boxes.jsonl, weight: 1, num_generations: 4, min_pass_rate: 0.1, max_pass_rate: 0.9}
        - {name: held-out, file: eval.jsonl, split: eval}

Promise: at every point of the sequence each source has its share of the places, to within one place; the same sources
give the same sequence, and more epochs only continue it. So an import may be repeated, interrupted and extended.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.configuration.loading import ServiceConfig
from shared.documents.scoring import WeightedScorer, repeated
from shared.errors import ConfigError
from shared.names import EVAL_SPLIT, TRAIN_SPLIT, SourceName, SplitName
from shared.store import Store
from shared.tasks.checks import TaskCheck
from shared.tasks.files import (
    Entry,
    ImportResult,
    ImportTarget,
    Progress,
    check_playable,
    check_stored,
    import_entries,
)
from shared.tasks.lines import check_task_file, lines_of
from shared.tasks.task_images import TaskImages, batches

SETTINGS = (
    *("sampler", "scorer", "scorers", "answer_schema", "tools", "exclude_tools", "system"),
    *("max_turns", "temperature", "min_pass_rate", "max_pass_rate"),
)


class TaskSource(BaseModel):
    """One file of the mixture. Settings given here override those of its lines."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: SourceName = Field(description="Name under which it is reported; also the prefix of its ids: NAME/ID.")
    file: Path
    split: SplitName = TRAIN_SPLIT
    weight: float | None = Field(
        None, gt=0, strict=True, description="Relative share of the sequence; None: its number of tasks."
    )
    num_generations: int | None = Field(
        None, gt=0, strict=True, description="Episodes per task; None: the import's default."
    )
    sampler: str | None = None
    scorer: str | None = None
    scorers: list[WeightedScorer] | None = None
    answer_schema: Literal["answer", "boxed"] | None = None
    tools: list[str] | None = None
    exclude_tools: list[str] | None = None
    system: str | None = None
    max_turns: int | None = Field(None, gt=0, strict=True)
    temperature: float | None = Field(None, ge=0, strict=True)
    min_pass_rate: float | None = Field(None, ge=0, le=1, strict=True)
    max_pass_rate: float | None = Field(None, ge=0, le=1, strict=True)

    @model_validator(mode="after")
    def the_band_of_pass_rates_is_not_empty(self) -> "TaskSource":
        low, high = self.min_pass_rate, self.max_pass_rate
        if low is not None and high is not None and low > high:
            raise ValueError(f"{self.name}: min_pass_rate {low} is above max_pass_rate {high}")
        return self

    @model_validator(mode="after")
    def scorers_are_named_once(self) -> "TaskSource":
        if self.scorer is not None and self.scorers:
            raise ValueError(f"{self.name}: scorer and scorers are both set; expected one of them")
        twice = repeated(self.scorers or [])
        if twice is not None:
            raise ValueError(f"{self.name}: scorers names {twice!r} twice; expected each scorer once")
        return self

    @model_validator(mode="after")
    def weights_and_bands_are_for_training(self) -> "TaskSource":
        given = [n for n in ("weight", "min_pass_rate", "max_pass_rate") if getattr(self, n) is not None]
        if self.split != TRAIN_SPLIT and given:
            raise ValueError(
                f"{self.name}: {given[0]} is for split train; every task of split {self.split} is played once"
            )
        return self

    @property
    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS if getattr(self, name) is not None}


class TasksConfig(ServiceConfig):
    """The section `tasks` of a YAML file."""

    section: ClassVar[str] = "tasks"
    program: ClassVar[str] = "tandem tasks import"

    sources: list[TaskSource] = Field([], description="The files and their settings.")
    epochs: int = Field(
        1, gt=0, description="Length of the training sequence, in multiples of the files' total number of tasks."
    )
    image_hosts: list[str] = Field([], description="Hosts from which images of http(s) URLs are fetched.")

    @model_validator(mode="after")
    def names_are_unique_in_their_split(self) -> "TasksConfig":
        names = [(source.split, source.name) for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources of split {twice[0][0]} are named {twice[0][1]!r}; each needs a unique name")
        return self

    def of_split(self, split: str) -> list[TaskSource]:
        return [source for source in self.sources if source.split == split]


# 8 parameters: all but the store and the sources are optional or chosen by the run
async def import_mix(
    store: Store,
    config: TasksConfig,
    *,
    policy: str,
    num_generations: int,
    splits: Sequence[str] | None = None,
    root: Path = Path(),
    progress: Progress | None = None,
    check: TaskCheck | None = None,
) -> ImportResult:
    """Check every file, then import each split's sequence (`splits` None: all). `root`: base of paths. Raises TaskFileError.

    `num_generations` is the default of sources. Tasks of split `eval` are bound to version 0: its round is the first
    point of the curve, and later rounds copy it.
    """
    if not config.sources:
        raise ConfigError(f"{config.config}: no sources in section tasks; see docs/bring/tasks.md")
    chosen = [s for s in dict.fromkeys(source.split for source in config.sources) if splits is None or s in splits]
    mixes = [_Mix(config, split, policy, num_generations, root, check) for split in chosen]
    images = TaskImages(config.image_hosts)
    for mix in mixes:
        await mix.check(store, images)
    await store.begin()
    inserted = unchanged = done = 0
    total = sum(mix.length for mix in mixes)
    for mix in mixes:
        for batch in batches(mix.entries()):
            new = await import_entries(store, batch, images)
            inserted, unchanged, done = inserted + new, unchanged + len(batch) - new, done + len(batch)
            if progress is not None:
                progress("importing", done, total)
    return ImportResult(inserted, unchanged)


def check_mix(config: TasksConfig, check: TaskCheck, root: Path, splits: Collection[str]) -> None:
    """Read every file of `splits`. Raises TaskFileError for its errors and for tasks that samplers cannot play."""
    for source in (source for source in config.sources if source.split in splits):
        check_playable(root / source.file, ImportTarget(source.split, settings=source.settings, check=check))


class _Mix:
    """The sequence of one split. Reads every file once to count tasks."""

    def __init__(
        self,
        config: TasksConfig,
        split: str,
        policy: str,
        num_generations: int,
        root: Path,
        check: TaskCheck | None,
    ) -> None:
        self._sources = config.of_split(split)
        self._paths = [root / source.file for source in self._sources]
        self._sizes = [check_task_file(path) for path in self._paths]
        epochs = config.epochs if split == TRAIN_SPLIT else 1
        self.length = epochs * sum(self._sizes)
        self._weights = [s.weight or float(n) for s, n in zip(self._sources, self._sizes, strict=True)]
        self._targets = [
            ImportTarget(
                split=split,
                policy=policy,
                num_generations=source.num_generations or num_generations,
                at_version=0 if split == EVAL_SPLIT else None,
                source=source.name,
                settings=source.settings,
                check=check,
            )
            for source in self._sources
        ]

    async def check(self, store: Store, images: TaskImages) -> None:
        """Check every pass over a file that the sequence begins against the stored tasks."""
        places = [0] * len(self._sources)
        for source in interleave(self._weights, self.length):
            places[source] += 1
        for path, target, size, count in zip(self._paths, self._targets, self._sizes, places, strict=True):
            passes = range(max(1, -(-count // size)))
            await check_stored(store, path, _with_epochs(target, passes), images, lambda done: None)

    def entries(self) -> Iterator[Entry]:
        streams = [_passes(path, target) for path, target in zip(self._paths, self._targets, strict=True)]
        for source in interleave(self._weights, self.length):
            yield next(streams[source])


def _with_epochs(target: ImportTarget, epochs: Sequence[int]) -> ImportTarget:
    fields: Mapping[str, Any] = {name: getattr(target, name) for name in ImportTarget.__dataclass_fields__}
    return ImportTarget(**{**fields, "epochs": epochs})


def _passes(path: Path, target: ImportTarget) -> Iterator[Entry]:
    """Yield the file's tasks repeatedly: pass k is epoch k."""
    epoch = 0
    while True:
        for line in lines_of(path):
            yield Entry(path, line, target, epoch)
        epoch += 1


def interleave(weights: Sequence[float], length: int) -> Iterator[int]:
    """Yield the source of each of `length` places: after n places source i has n·w_i/Σw of them, to within one.

    Place k of source i must lie within [k/p, (k+1)/p), p = w_i/Σw; earliest deadline first meets all of these windows
    (Baruah et al. 1996, proportionate progress; Tijdeman 1980, the chairman assignment problem). Uses integers only.
    """
    fractions = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(fraction.denominator for fraction in fractions))
    shares = [int(fraction * scale) for fraction in fractions]
    total = sum(shares)
    given = [0] * len(shares)
    for place in range(length):
        ready = (i for i, share in enumerate(shares) if given[i] * total <= place * share)
        chosen = min(ready, key=lambda i: -(-(given[i] + 1) * total // shares[i]))
        given[chosen] += 1
        yield chosen
