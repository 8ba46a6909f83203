"""One process of `scripts.bench.fleet`: runners that play prepared episodes with the store's verbs, as a sampler does.

    a free place ─▶ claim ─▶ record ─▶ each turn: its request, then its reply with the next one ─▶ record scored ─▶ slot scored
    a group that is complete ─▶ settled by this process or another

There is no engine and no text to render: each reply is there at once, or after `turn_s` on average, so that what a rollout costs
is what the store costs. The process has a sampler's event loop and garbage collector. A
line of standard input asks for the figures since the last one (`FleetFigures`), which are one line of JSON; its end ends the
process.
"""

import asyncio
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import uvloop
from pymongo import monitoring

from sampler.core.episode.journal import Journal
from sampler.core.service.claim_pace import pause_s, slots_at_once
from sampler.core.service.garbage import collect_seldom
from sampler.core.service.loops import every
from sampler.core.service.settling import Settling
from sampler.core.settlement.current_rules import CurrentRules
from sampler.settings import SamplerConfig
from shared.documents import Claim, DispatchedSamplingTask, SampledResponse
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import DispatchStatus, RecordStatus, Termination
from shared.names import TRAIN_SPLIT
from shared.processes.interrupt import run_command
from shared.store import Store

PROMPT, RESULT = 200, 30  # tokens of an episode's first prompt, and of what follows each reply
OF_DRIVER = {"hello", "ping", "isMaster", "endSessions"}
IDLE_S = 0.05  # until tasks are looked for again where there was none


@dataclass
class FleetFigures:
    """Since they were asked for last. `commands` by name and collection; `claims_ms`: of the claims that leased a slot."""

    rollouts: int = 0
    settled: int = 0
    empty_claims: int = 0
    claims_ms: list[float] = field(default_factory=list)
    commands: Counter[str] = field(default_factory=Counter)


class CommandNames(monitoring.CommandListener):
    """Counts the commands of every client of this process."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name not in OF_DRIVER:
            of = event.command.get("collection", event.command[event.command_name])
            self._counts[f"{event.command_name} {of}"] += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


class Runners:
    """`places` episodes at once, of `turns` turns of `turn_s` seconds and `tokens` tokens a reply."""

    # 6 parameters: the sizes of an episode are options of the benchmark
    def __init__(
        self,
        store: Store,
        config: SamplerConfig,
        figures: FleetFigures,
        *,
        turns: int,
        tokens: int,
        turn_s: float = 0.0,
    ) -> None:
        self._store, self._config, self._figures = store, config, figures
        self._places = config.queue.max_concurrent_episodes
        self._turns, self._turn_s, self._worker = turns, turn_s, f"fleet:{os.getpid()}"
        self._reply = SampledResponse(
            text="so " * tokens,
            message={"role": "assistant", "content": None},
            output_ids=pack_ints(range(tokens)),
            output_logprobs=pack_floats([-0.5] * tokens),
            finish_reason="stop",
        )
        self._tokens, self._first, self._next = tokens, pack_ints(range(PROMPT)), pack_ints(range(RESULT))
        self._rules = CurrentRules(store, config, self._worker)
        self._settling = Settling(store, self._worker, config, self._rules, None)
        self._playing: dict[asyncio.Task[None], Claim] = {}
        self._place_free = asyncio.Event()
        self._settled_before = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._rules.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._settling.run(), name="settle")
            group.create_task(every(self._renew, self._config.queue.renew_s), name="renew")
            while True:
                free = self._places - len(self._playing)
                if not free:
                    self._place_free.clear()
                    await self._place_free.wait()
                    continue
                claims = await self._claim(slots_at_once(free))
                for claim in claims:
                    task = group.create_task(self._play(claim), name=claim.record_id)
                    self._playing[task] = claim
                    task.add_done_callback(self._ended)
                await asyncio.sleep(pause_s(free, self._places) if claims else IDLE_S)

    def figures(self) -> dict[str, Any]:
        self._figures.settled = self._settling.settled - self._settled_before
        self._settled_before = self._settling.settled
        values = vars(self._figures) | {
            "claims_ms": [*self._figures.claims_ms],
            "commands": dict(self._figures.commands),
        }
        self._figures.rollouts = self._figures.empty_claims = 0
        self._figures.claims_ms.clear()
        self._figures.commands.clear()
        return values

    async def _claim(self, most: int) -> list[Claim]:
        """As `SamplerService` claims."""
        began = time.monotonic()
        claims = await self._store.tasks.claim_slots(
            self._worker,
            policy="main",
            split=TRAIN_SPLIT,
            lease_s=self._config.queue.lease_s,
            seq_limit=10**9,
            max_failures=self._config.queue.max_failures,
            rules=self._rules.number,
            most=most,
        )
        if claims:
            self._figures.claims_ms.append((time.monotonic() - began) * 1e3)
        else:
            self._figures.empty_claims += 1
        return claims

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._playing.pop(task)
        self._place_free.set()
        self._figures.rollouts += not task.cancelled() and task.exception() is None

    async def _renew(self) -> None:
        """A slot that is lost meanwhile has been finished, or its episode will be refused."""
        await self._store.tasks.renew_leases(list(self._playing.values()), self._config.queue.lease_s)

    async def _play(self, claim: Claim) -> None:
        """The commands of `sampler.core.episode.episode.play`, for an episode that ends normally."""
        records, name = self._store.records, claim.record_id
        await records.start(claim, self._worker)
        journal = Journal(records)
        for turn in range(self._turns):
            await journal.open(self._request(name, turn), ("main", None))
            if self._turn_s:
                await asyncio.sleep(random.uniform(0, 2 * self._turn_s))
            journal.amend(f"{name}:{turn}", **self._answer())
        await journal.close(DispatchStatus.FAILED, failed=False)
        score = float(claim.traj_id % 2)
        values: dict[str, Any] = {
            "traj": [f"{name}:{turn}" for turn in range(self._turns)],
            "num_turns": self._turns,
            "num_tokens": self._turns * self._tokens,
            "policy_versions": [0],
            "termination": Termination.ANSWERED.value,
            "score": score,
            "policy_scores": {},
            "reward_details": {"scorer": "exact_match", "expected": "4"},
        }
        await records.move(name, RecordStatus.SCORED, values)
        if await self._store.tasks.finish_slot(claim, score):
            self._settling.complete(claim.task.id)

    def _request(self, name: str, turn: int) -> DispatchedSamplingTask:
        shared = 0 if turn == 0 else PROMPT + self._tokens + (turn - 1) * (RESULT + self._tokens)
        return DispatchedSamplingTask(
            id=f"{name}:{turn}",
            record=name,
            turn=turn,
            parent=None if turn == 0 else f"{name}:{turn - 1}",
            shared_length=shared,
            prompt_ids=self._next if turn else self._first,
            messages=[{"role": "tool" if turn else "user", "content": "What is 2+2? " * (2 if turn else 15)}],
            tools_hash="",
            sampling_params={"temperature": 1.0, "top_p": 1.0, "stop_token_ids": [0], "skip_special_tokens": False},
            status=DispatchStatus.RUNNING,
        )

    def _answer(self) -> dict[str, Any]:
        return {
            "status": DispatchStatus.COMPLETED,
            "service": "http://127.0.0.1:1",
            "weight_versions": [(0, self._tokens)],
            "usage": {"prompt": PROMPT, "cached": 0, "completion": self._tokens},
            "response": self._reply,
        }


async def serve(options: dict[str, Any]) -> None:
    figures = FleetFigures()
    monitoring.register(CommandNames(figures.commands))
    config = SamplerConfig(**options["config"])
    async with Store.open(config.db_connection_string, config.run) as store:
        runners = Runners(store, config, figures, **options["episode"])
        running = asyncio.create_task(runners.run(), name="runners")
        reader = asyncio.create_task(_answer_lines(runners), name="figures")
        await asyncio.wait([running, reader], return_when=asyncio.FIRST_COMPLETED)
        for task in (reader, running):
            task.cancel()
        await asyncio.wait([reader, running])
        for task in (reader, running):
            if not task.cancelled():
                task.result()


async def _answer_lines(runners: Runners) -> None:
    """Until standard input ends."""
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(runners.figures()), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    collect_seldom()
    run_command(lambda: uvloop.run(serve(json.loads(sys.argv[1]))))
