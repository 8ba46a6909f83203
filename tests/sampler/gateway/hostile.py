"""Hostile clients against gateways that are killed: `python -m tests.sampler.gateway.hostile [--seconds 600]`

    client processes ─HTTP─▶ gateway processes, killed, frozen, stopped and started again ─▶ a scripted engine; MongoDB

`hostile_client` keeps to no order. Then every task is played to its end by an agent that does, and `problems` says what was
promised and not kept: the audit, each slot settled once, attempts counted once, no place left taken.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from shared.documents import Record
from shared.documents.states import OVER, RecordStatus, SlotStatus
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from tandem.audit.run import audit
from tests.sampler.running import engine_is_up
from tests.shared.builders import import_tasks

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "assets" / "example" / "model"
RUN = "hostile"
FLAGS = {
    **{"max_concurrent_episodes": "24", "attempt_idle_s": "12", "renew_s": "1", "lease_s": "4", "heartbeat_s": "1"},
    **{"grace_s": "2", "retry_delay_s": "0.1", "max_turns": "12", "open_all_tasks": "true"},
}
SCORED = (RecordStatus.SCORED, RecordStatus.READY, RecordStatus.ABANDONED)  # the last: set aside in settlement


class Attack:
    """`run` once. `done`: counts of what happened."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.random = random.Random(options.seed)
        self.mongod = Mongod(folder / "mongodb")
        self.engine_port, *ports = (free_port() for _ in range(3))
        self.ports = {f"gateway{at}": port for at, port in enumerate(ports)}
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.done = Counter[str]()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    async def run(self) -> list[str]:
        """What was promised and not kept."""
        self.mongod.start()
        try:
            async with Store.open(self.mongod.connection_string, RUN) as store:
                await import_tasks(store, self.options.tasks, num_generations=2)
                stub = ["-m", "scripts.bench.stub_engine", "--tokens", "30", "--token-ms", "12", "--turns", "3"]
                self._start("engine", *stub, "--model-path", str(MODEL), "--port", str(self.engine_port))
                await engine_is_up(store, f"http://127.0.0.1:{self.engine_port}")
                await self._attack()
                await self._play_the_rest(store)
                return await problems(store, self.told, self.done)
        finally:
            for process in self._processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self.mongod.stop()

    async def _attack(self) -> None:
        for name in self.ports:
            self._start_gateway(name)
        for at in range(self.options.clients):
            told = str(self.folder / f"told{at}.jsonl")
            seed, seconds = str(self.options.seed + at), str(self.options.seconds)
            self._start(f"client{at}", "-m", "tests.sampler.gateway.hostile_client", seed, seconds, told, *self.urls)
        until = time.monotonic() + self.options.seconds
        while time.monotonic() < until:
            await asyncio.sleep(self.random.uniform(1, 6))
            await self._strike(self.random.choice(list(self.ports)))
        for at in range(self.options.clients):
            assert await asyncio.to_thread(self._processes[f"client{at}"].wait, 120) == 0, self.log(f"client{at}")

    async def _strike(self, name: str) -> None:
        (how,) = self.random.choices(["kill", "freeze", "stop"], [6, 3, 1])
        self.done[how] += 1
        process = self._processes[name]
        if how == "freeze":
            os.killpg(process.pid, signal.SIGSTOP)
            await asyncio.sleep(self.random.uniform(0.5, 15))
            os.killpg(process.pid, signal.SIGCONT)
            return
        os.killpg(process.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)
        await asyncio.to_thread(process.wait, 120)
        await asyncio.sleep(self.random.uniform(0, 3))
        self._start_gateway(name)

    async def _play_the_rest(self, store: Store) -> None:
        """Until every task has ended: what the attack left is free when its lease ends."""
        tasks = store.database["tasks"]
        async with httpx.AsyncClient(timeout=120) as http, asyncio.timeout(600):
            while await tasks.count_documents({"status": {"$nin": list(OVER)}}):
                for url in self.urls:
                    offers = [http.post(f"{url}/claim", json={"wait_s": 0.5}) for _ in range(8)]
                    await asyncio.gather(*(_play(http, url, offer) for offer in offers))
            while any([worker.stats.get("episodes_running") for worker in await _gateways(store)]):  # noqa: ASYNC110 - a database has no event
                await asyncio.sleep(0.5)

    @property
    def told(self) -> list[dict[str, Any]]:
        """What gateways promised to clients."""
        files = self.folder.glob("told*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def _start_gateway(self, name: str) -> None:
        flags = FLAGS | {"run": RUN, "db_connection_string": self.mongod.connection_string}
        flags |= {"model_name_or_path": str(MODEL), "gateway_port": str(self.ports[name])}
        self._start(
            name, "-m", "sampler.gateway", *(word for key, value in flags.items() for word in (f"--{key}", value))
        )

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]


async def _play(http: httpx.AsyncClient, url: str, claiming: Any) -> None:
    try:
        claimed = await claiming
        if claimed.status_code != 200:
            return
        offer = claimed.json()
        own = {"authorization": f"Bearer {offer['api_key']}"}
        body = {"model": "main", "messages": offer["messages"]}
        await http.post(f"{url}/v1/chat/completions", json=body, headers=own)
        await http.post(f"{url}/finish", json={"score": 1}, headers=own)
    except httpx.TransportError:
        await asyncio.sleep(0.5)  # the gateway starts


async def _gateways(store: Store) -> list[Any]:
    return [worker for worker in await store.workers.live() if worker.kind == "gateway"]


async def problems(store: Store, told: list[dict[str, Any]], done: Counter[str]) -> list[str]:
    """`told`: what clients wrote. `done`: gets counts."""
    found = [f"audit: {report}" for report in [await audit(store)] if not report.ok]
    records = {d["_id"]: Record.from_mongo(d) async for d in store.database["records"].find({})}
    by_slot: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records.values():
        by_slot[record.task, record.traj_id].append(record)
        done[f"records {record.status.value}"] += 1
    ids = [document["_id"] async for document in store.database["tasks"].find({}, {"_id": 1})]
    for name in ids:
        task = await store.tasks.get(name)
        assert task is not None
        for slot in task.slots:
            found += _slot_problems(f"{name} slot {slot.traj_id}", slot, by_slot[name, slot.traj_id])
            done[f"slots {slot.status.value}"] += 1
    found += await _promise_problems(store, told, records)
    done.update(f"told {one['kind']}" for one in told)
    left = await store.questions.slots_to_play("main", 10**9)
    if any(left.values()):
        found.append(f"slots are left: {left}")
    if places := [(worker.id, worker.stats.get("episodes_running")) for worker in await _gateways(store)]:
        found += [f"{name} has {count} attempts" for name, count in places if count]
    return found


def _slot_problems(name: str, slot: Any, records: list[Record]) -> list[str]:
    # One that lost its lease between its score and its slot's is abandoned, with the score that it had.
    lost = [r.id for r in records if r.status is RecordStatus.ABANDONED and r.id != slot.record_id]
    scored = [r for r in records if r.score is not None and r.id not in lost]
    found = []
    if slot.status not in (SlotStatus.SCORED, SlotStatus.FAILED):
        found.append(f"{name} is {slot.status}")
    if len(scored) > 1 or (slot.status is SlotStatus.SCORED) != (len(scored) == 1):
        found.append(f"{name} is {slot.status} with {len(scored)} scored records of {len(records)}")
    if scored and (slot.record_id, slot.score) != (scored[0].id, scored[0].score):
        found.append(f"{name} has {slot.record_id} {slot.score}; its scored record is {scored[0].id} {scored[0].score}")
    if slot.failures > slot.attempt - len(scored):
        found.append(
            f"{name}: {slot.failures} failures of {slot.attempt} attempts, of which {len(scored)} have a score"
        )
    if len(records) > slot.attempt:
        found.append(f"{name}: {len(records)} records of {slot.attempt} attempts")
    return found


async def _promise_problems(store: Store, told: list[dict[str, Any]], records: dict[str, Record]) -> list[str]:
    found = []
    replies: dict[str, str] = {}
    for one in told:
        if one["record"] not in records:
            found.append(f"{one['record']} was told to a client, and is not there")
        elif one["kind"] == "reply" and replies.setdefault(one["turn"], one["text"]) != one["text"]:
            found.append(f"{one['turn']} was told with two texts")
        elif one["kind"] == "end" and one["score"] is not None and records[one["record"]].score != one["score"]:
            found.append(f"{one['record']} was told {one['score']}; its score is {records[one['record']].score}")
    answered = store.database["dispatched_sampling_tasks"].find({"response": {"$ne": None}}, {"_id": 1})
    there = {document["_id"].replace(":", "-") async for document in answered}
    return found + [f"{turn} was told and is not there" for turn in replies.keys() - there]


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--tasks", type=int, default=600, help="of two slots each")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    with TemporaryDirectory(prefix="tandem-hostile-") as folder:
        attack = Attack(Path(folder), parser.parse_args())
        found = await attack.run()
        print(json.dumps(attack.done, indent=1, sort_keys=True))
    print("\n".join(found[:50]) or "every promise was kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
