"""Random faults of a replica set while tasks are played and trained: python -m tests.shared.replica_faults [--faults 20]

Three real mongods; by turns a step-down, kill -9 of the primary, kill -9 of a secondary, and no majority for longer than the
election, each while verbs of the store are under way. In the end every group must have been trained once, by its step.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from shared.store import Store
from tandem.audit.run import audit
from tests.shared.builders import claim, make_task
from tests.shared.episodes import play, settle, train
from tests.shared.replica_set import ReplicaSet

RUN = "faults"
LEASE_S = 20.0


async def work_through(store: Store, groups: range) -> None:
    """Import, play, settle and train them, a group a step."""
    for seq in groups:
        await store.tasks.insert_new([make_task(seq)])
        while (await store.tasks.count_by_status()).get("train", {}).get("settled", 0) <= seq:
            while (held := await claim(store, lease_s=LEASE_S)) is not None:
                await play(store, held, float(held.traj_id))
            await settle(store)
            await asyncio.sleep(0.1)  # a claim whose answer was lost is claimed again when its lease ends
        await train(store, seq + 1)
        await store.versions.announce("main", seq + 1, f"/weights/{seq + 1}", {})


async def problems(store: Store, groups: int) -> list[str]:
    """What is missing or there twice."""
    data = [(d.task, d.trained_steps) for d in await store.data.find({})]
    expected = [(f"main:train:0:t{seq}", [seq + 1]) for seq in range(groups) for _ in range(2)]
    steps = [version.step for version in await store.versions.all("main")]
    counts = (await store.tasks.count_by_status()).get("train")
    report = await audit(store)
    found = {
        f"training data {data}": data == expected,
        f"versions {steps}": steps == list(range(1, groups + 1)),
        f"tasks {counts}": counts == {"settled": groups},
        f"audit {report.to_json()['checks']}": report.ok,
    }
    return [what for what, right in found.items() if not right]


def break_it(servers: ReplicaSet, fault: str, chance: random.Random) -> None:
    """And mend it again."""
    if fault == "step down":
        servers.step_down()
    elif fault == "no majority":
        lost = servers.secondaries()
        for n in lost:
            servers.stop(n)
        servers.until(lambda: "PRIMARY" not in servers.states(), "end of the primary")
        for n in lost:
            servers.resume(n)
    else:
        servers.kill(servers.primary() if fault == "kill -9" else chance.choice(servers.secondaries()))
    servers.whole()


FAULTS = ("step down", "kill -9", "no majority", "kill -9 of a secondary")


async def run_faults(servers: ReplicaSet, faults: int, seed: int) -> tuple[Counter[str], int, list[str]]:
    """(faults by kind, groups trained meanwhile, problems)."""
    chance, counts, groups = random.Random(seed), Counter[str](), 0
    async with Store.open(servers.connection_string, RUN) as store:
        for number in range(faults):
            fault = FAULTS[number % len(FAULTS)]
            breaking = asyncio.create_task(asyncio.to_thread(break_it, servers, fault, chance))
            while not breaking.done():
                await work_through(store, range(groups, groups + 1))
                groups += 1
            await breaking
            counts[fault] += 1
        return counts, groups, await problems(store, groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ReplicaSet(Path(folder)) as servers:
        counts, groups, found = asyncio.run(run_faults(servers, args.faults, args.seed))
    by_kind = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    sys.stdout.write(f"{sum(counts.values())} faults ({by_kind}); {groups} groups trained; {len(found)} problems\n")
    for problem in found:
        sys.stdout.write(problem + "\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
