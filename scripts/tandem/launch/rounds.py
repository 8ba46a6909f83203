"""Imports tasks and runs evaluation rounds, in which one weight version plays the held-out tasks once.

Importing is idempotent and a complete round stays complete, so every call may be repeated after an interruption.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from shared.evaluation.rounds import evaluation_round
from shared.names import EVAL_SPLIT, TRAIN_SPLIT
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from shared.tasks.files import ImportTarget, import_task_file
from shared.tasks.lines import check_unique_ids
from shared.tasks.mix import import_mix
from shared.user_code.payload import load_payload_model
from tandem.launch.places import ROOT
from tandem.launch.settings import LaunchConfig

POLL_S = 0.5  # shortest interval of queries


async def import_train(store: Store, config: LaunchConfig) -> int:
    """Queue the training tasks; returns the number of new ones."""
    mix = config.mix()
    if mix is not None and mix.of_split(TRAIN_SPLIT):
        chosen: dict[str, Any] = {"policy": config.policy, "num_generations": config.num_generations}
        return (await import_mix(store, mix, **chosen, splits=(TRAIN_SPLIT,), root=ROOT)).inserted
    epochs, model = range(config.train_epochs), payload_model(config)
    target = ImportTarget(TRAIN_SPLIT, config.policy, epochs, config.num_generations, payload_model=model)
    return (await import_task_file(store, ROOT / config.train_file, target)).inserted


async def import_eval(store: Store, config: LaunchConfig) -> None:
    """Queue the held-out tasks for version 0; later rounds play copies of them."""
    mix = config.mix()
    if mix is not None and mix.of_split(EVAL_SPLIT):
        chosen: dict[str, Any] = {"policy": config.policy, "num_generations": config.eval_generations}
        await import_mix(store, mix, **chosen, splits=(EVAL_SPLIT,), root=ROOT)
        return
    model = payload_model(config)
    target = ImportTarget(EVAL_SPLIT, config.policy, (0,), config.eval_generations, at_version=0, payload_model=model)
    files = [ROOT / path for path in config.eval_files]
    check_unique_ids(files)
    for path in files:
        await import_task_file(store, path, target)


def payload_model(config: LaunchConfig) -> type[BaseModel] | None:
    return None if config.payload_model is None else load_payload_model(config.payload_model)


class EvalRound:
    """One pass over the held-out tasks at one weight version."""

    def __init__(self, store: Store, policy: str, version: int) -> None:
        self._store = store
        self._policy = policy
        self.version = version
        self.done = 0
        self.total = 0

    def progress(self) -> str:
        return f"{self.done}/{self.total} tasks"

    async def is_complete(self) -> bool:
        """Whether it was finished, now or in an earlier launch."""
        self.done, self.total = await self._store.evaluation.count_round(self._policy, self.version)
        return 0 < self.total == self.done

    async def play(self) -> None:
        """Queue missing tasks and wait until samplers have settled all of them."""
        await self._store.evaluation.queue_round(self._policy, self.version)
        await self.wait()

    async def wait(self) -> None:
        timer = PollTimer(self._store.signals, (Signal.DATA, Signal.TASKS), POLL_S)
        with waiting(self._wait()) as wait:
            while not await self.is_complete():
                wait.set(self._wait())
                await timer.pause()

    def _wait(self) -> Wait:
        what = f"the held-out tasks of version {self.version}"
        return Wait(what, f"{self.done} of {self.total} are settled", "samplers have played all, or they fail for good")

    async def text(self) -> str:
        figures = (await evaluation_round(self._store, self._policy, self.version)).overall
        others = "".join(f"; of {policy} {reward}" for policy, reward in figures.other_rewards.items())
        return f"{figures.reward or 'none'} (n={figures.episodes}){others}"


def setup_seconds(venv: Path) -> float | None:
    """Seconds that scripts/setup.sh took to create this environment; None if it was created otherwise."""
    try:
        return float((venv / "setup.seconds").read_text())
    except (OSError, ValueError):
        return None
