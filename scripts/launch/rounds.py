"""Tasks into the queue, and evaluation rounds: the held-out tasks once, played by one weight version only.

A round is an epoch of the split `eval`. Importing is idempotent and a complete round stays complete, so all of this may
be repeated after any interruption.
"""

import asyncio
from pathlib import Path

from pydantic import BaseModel

from scripts.launch.settings import ROOT, LaunchConfig
from shared.documents import task_id
from shared.own_payload import load_payload_model
from shared.states import TaskStatus
from shared.store import Store
from shared.task_files import Target, TaskLine, import_task_file, read_task_file

EVAL = "eval"
TRAIN = "train"
POLL_S = 0.5


async def import_train(store: Store, config: LaunchConfig) -> int:
    """Queue the training file; returns how many tasks are new."""
    target = Target(
        split=TRAIN,
        policy=config.policy,
        epochs=range(config.train_epochs),
        num_generations=config.num_generations,
        payload_model=payload_model(config),
    )
    result = await import_task_file(store, ROOT / config.train_file, target)
    return result.inserted


def payload_model(config: LaunchConfig) -> type[BaseModel] | None:
    return None if config.payload_model is None else load_payload_model(config.payload_model)


class EvalRound:
    """One pass over the held-out tasks at one weight version; `epoch` is that version."""

    def __init__(self, store: Store, config: LaunchConfig, version: int) -> None:
        self._store = store
        self._config = config
        self.version = version
        path = ROOT / config.eval_file
        self._ids = [
            task_id(config.policy, EVAL, version, line.tid)
            for line in read_task_file(path)
            if isinstance(line, TaskLine)
        ]
        self.done = 0

    @property
    def total(self) -> int:
        return len(self._ids)

    def progress(self) -> str:
        return f"{self.done}/{self.total} tasks"

    async def is_complete(self) -> bool:
        """Was it played to its end, now or in an earlier launch?"""
        self.done = 0
        for identity in self._ids:
            if not await self._is_settled(identity):
                return False
            self.done += 1
        return True

    async def play(self) -> None:
        """Queue what is not queued and return when every task is settled: samplers do the rest."""
        target = Target(
            split=EVAL,
            policy=self._config.policy,
            epochs=(self.version,),
            num_generations=self._config.eval_generations,
            at_version=self.version,
            payload_model=payload_model(self._config),
        )
        await import_task_file(self._store, ROOT / self._config.eval_file, target)
        waiting = list(self._ids)
        while waiting:
            # in queue order: the first ones settle first, so nearly every question asked here is answered with yes
            while waiting and await self._is_settled(waiting[0]):
                waiting.pop(0)
                self.done = self.total - len(waiting)
            await asyncio.sleep(POLL_S)

    async def rewards(self) -> dict[str, tuple[float, int]]:
        """{source: (mean score, scored episodes)}."""
        return await self._store.tasks.rewards_by_source(EVAL, self.version)

    async def _is_settled(self, identity: str) -> bool:
        task = await self._store.tasks.get(identity)
        return task is not None and task.status in (TaskStatus.SETTLED, TaskStatus.ABANDONED)


def overall(rewards: dict[str, tuple[float, int]]) -> tuple[float, int]:
    """Mean over all episodes, and how many they are."""
    n = sum(count for _, count in rewards.values())
    return (sum(mean * count for mean, count in rewards.values()) / n if n else float("nan")), n


def setup_seconds(venv: Path) -> float | None:
    """How long scripts/setup.sh took when it made this environment; None when somebody else made it."""
    try:
        return float((venv / "setup.seconds").read_text())
    except (OSError, ValueError):
        return None
