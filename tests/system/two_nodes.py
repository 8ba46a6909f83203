"""A run over machines of their own, with losses in the middle: python -m tests.system.two_nodes (needs root, iproute2; minutes).

    database 10.77.N.254        a: rank 0, trainer, a sampler          c: joins with samplers alone; nothing is shared with it
                                b: rank 1, trainer, engine, samplers

`scripts/minirl_example.sh` starts each machine. a and b share output/RUN (checkpoints, published weights), c shares no folder.
After the first steps all samplers of b are killed at once (kill -9) and come back; then c is lost as a whole and comes back while
the run is paused, since it would else end before; then c is asked to leave (SIGTERM). With --transport broadcast or peers, c has
an engine too, which gets weights over the network: by broadcast it shares output/RUN, by peers it shares nothing.
The end is the audit: no slot lost, none counted twice.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import yaml

from shared.documents.run import InferenceService, Worker
from shared.documents.states import RunState
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.system.namespaces import ROOT, Machine, Network
from tests.system.processes import PATIENT
from tests.system.watch import CheckFailed, Watch

PATIENCE_S = 900.0
RUN = "two-nodes"
SCRIPT = ["scripts/minirl_example.sh", RUN]
SETTINGS = ROOT / "assets" / "example" / "minirl.yml"


class Check:
    def __init__(self, network: Network, store: Store, database: str, steps: int, *, transport: str) -> None:
        self.network = network
        self.store = store
        self.database = database
        self.steps = steps
        shared = {ROOT / "output" / RUN: network.folder / "shared"}
        (network.folder / "shared").mkdir()
        self.a = network.add("a", shared)
        self.b = network.add("b", shared)
        self.c = network.add("c", shared if transport == "broadcast" else None)
        self.transport = transport
        held_out = (ROOT / "assets" / "example" / "eval.jsonl").read_text().splitlines()[:16]
        self.eval_file = network.folder / "eval.jsonl"
        self.eval_file.write_text("\n".join(held_out) + "\n")
        self.watch = Watch(store, self.clues, PATIENCE_S, self.ended)

    def clues(self) -> str:
        return "\n".join(f"--- {m.name}\n{m.said()[-3000:]}" for m in (self.a, self.b, self.c))

    def ended(self) -> list[str]:
        return [m.name for m in (self.a, self.b) if not m.runs]

    def start(self, machine: Machine, **variables: str) -> None:
        # Settings in a file: flags of services would have every launcher ask the trainer for its own, which takes it seconds.
        settings = yaml.safe_load(SETTINGS.read_text())
        settings["trainer"] |= {"groups_per_step": 4, "save_steps": 2, "max_steps": self.steps}
        settings["sampler"] |= {"lease_s": 10, "renew_s": 2, "max_concurrent_episodes": 8}  # 32 would leave c none
        if self.c_has_an_engine:
            settings["trainer"] |= {"weight_transport": self.transport, "broadcast_address": self.a.address}
        (machine.folder / "tmp" / "run.yml").write_text(yaml.safe_dump(settings))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TANDEM"))}
        tasks = {"TRAIN_FILE": "assets/example/train.jsonl", "MCP_MANAGER_URL": "bundled"}
        given = {"DB_CONNECTION_STRING": self.database, "EVAL_FILE": str(self.seen_eval_file(machine)), **tasks}
        machine.start([*SCRIPT, "--config", "/tmp/run.yml"], environment | PATIENT | given | variables)

    def seen_eval_file(self, machine: Machine) -> Path:
        """A copy of its own: c shares nothing."""
        copy = machine.folder / "tmp" / "eval.jsonl"
        copy.write_text(self.eval_file.read_text())
        return Path("/tmp/eval.jsonl")

    @property
    def c_has_an_engine(self) -> bool:
        return self.transport != "disk"

    async def until_more(self, machine: Machine, count: int) -> None:
        before = (await self.watch.episodes())[machine.name]

        async def more() -> bool:
            return (await self.watch.episodes())[machine.name] >= before + count

        await self.watch.until(f"{count} more episodes of {machine.name}", more)
        self.watch.say(f"{machine.name} has played {count} more episodes")

    async def engines_of_c(self) -> list[InferenceService]:
        return [s for s in await self.store.services.live("main") if self.c.address in s.url]

    async def living_of_c(self) -> list[Worker]:
        return [w for w in await self.store.workers.live() if w.host == self.c.name]

    async def c_is_gone(self) -> bool:
        return not await self.living_of_c() and not await self.engines_of_c()

    async def c_is_back(self) -> bool:
        samplers = [w for w in await self.living_of_c() if w.kind == "sampler"]
        return bool(samplers) and (not self.c_has_an_engine or bool(await self.engines_of_c()))


async def scenario(check: Check) -> None:
    a, b, c, watch = check.a, check.b, check.c, check.watch
    place = {"NUM_MACHINES": "2", "MASTER_ADDR": a.address, "MASTER_PORT": "29500"}
    joining = {"JOIN": "true", "NUM_SAMPLERS": "2"} | ({} if check.c_has_an_engine else {"ENGINE": "none"})
    check.start(a, MACHINE_RANK="0", ENGINE="none", NUM_SAMPLERS="1", **place)
    check.start(b, MACHINE_RANK="1", NUM_SAMPLERS="2", **place)
    check.start(c, **joining)
    await watch.until_step(1)
    engines = [(s.url, s.status.value, s.version) for s in await check.store.services.all()]
    watch.say(f"engines: {engines}")
    samplers = b.processes(" -m sampler --run")
    for pid in samplers:
        os.kill(pid, signal.SIGKILL)
    watch.say(f"killed all {len(samplers)} samplers of b")
    await check.until_more(b, 2)
    await check.until_more(c, 2)
    if check.c_has_an_engine:
        await until_received(check)
    c.kill()
    watch.say("c is lost: every process of it was killed at once")
    await watch.until_step(await watch.step() + 2)
    await check.store.runs.set_state(RunState.PAUSED)
    await watch.until("the end of c's lost processes by their heartbeats", check.c_is_gone)
    check.start(c, **joining)
    await watch.until("c's new processes", check.c_is_back)
    await check.store.runs.set_state(RunState.RUNNING)
    watch.say("c is back; the run was paused meanwhile")
    await check.until_more(c, 2)
    if check.c_has_an_engine:
        await until_received(check)
    before = time.monotonic()
    status = c.stop()
    watch.say(f"c was asked to leave: status {status} after {time.monotonic() - before:.1f} s")
    await watch.until_step(check.steps)
    statuses = {m.name: await asyncio.to_thread(m.wait) for m in (a, b)}
    watch.say(f"the launchers of a and b ended with {statuses}")
    if any(statuses.values()):
        raise CheckFailed(a.said()[-4000:] + b.said()[-4000:])


async def until_received(check: Check) -> None:
    """Until c's engine serves a version that it got over the network."""
    field = {"broadcast": "update_broadcast_bytes", "peers": "update_pull_s"}[check.transport]

    async def keeper() -> Worker | None:
        return next((w for w in await check.living_of_c() if w.stats.get(field, 0) > 0), None)

    async def served() -> bool:
        return await keeper() is not None

    await check.watch.until(f"weights for c's engine by {check.transport}", served)
    if found := await keeper():
        check.watch.say(f"c's engine got weights over the network, {field} {found.stats[field]:g}: {found.doing}")


async def run(folder: Path, steps: int, *, transport: str) -> None:
    with Network(folder) as network:
        server = Mongod(folder / "mongodb", bind_ip=f"127.0.0.1,{network.address}")
        with server:
            database = f"mongodb://{network.address}:{server.port}/?directConnection=true"
            async with Store.open(database, RUN) as store:
                check = Check(network, store, database, steps, transport=transport)
                await scenario(check)
                say_results(check, folder / "shared")
                check.watch.say(f"scored episodes by machine: {dict(await check.watch.episodes())}")
                await check.watch.audit()


def say_results(check: Check, output: Path) -> None:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines]
    ends = [sum(some) / len(some) for some in (rewards[:5], rewards[-5:])]
    held_out = json.loads((output / "summary.json").read_text())["eval"]
    scores = ", ".join(f"{when} {found['reward']:.3f} (n {found['n']})" for when, found in held_out.items())
    check.watch.say(
        f"{len(lines)} steps; reward of the first and last five {ends[0]:.3f}, {ends[1]:.3f}; held-out {scores}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument(
        "--transport", choices=["disk", "broadcast", "peers"], default="disk", help="of weights to c's engine"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder with outputs and logs")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    folder = Path(tempfile.mkdtemp(prefix="tandem-two-nodes-"))
    try:
        asyncio.run(run(folder, arguments.steps, transport=arguments.transport))
    except CheckFailed as exc:
        sys.exit(f"FAILED: {exc}")
    finally:
        if arguments.keep:
            sys.stdout.write(f"kept: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
