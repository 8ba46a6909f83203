"""Agents that change their own histories: is every trained token one that was sampled, in the context in which it was sampled?

    python -m tests.sampler.gateway.drift [--episodes 20] [--only WORD]

Each kind of drift is played by that many made-up conversations over HTTP, against an engine with random replies. Prints, for each
kind: requests, sampled tokens, how many of them are wrong in the trainer's token tree (another context, lost, or twice), the
tokens of all requests over those of the tree (what merging saves), and the requests by cause. Ends with 1 if a token is wrong.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.gateway.drifting import DRIFTS, Drifted, drifted


async def main(episodes: int, only: str) -> int:
    print(
        f"{'kind':22} {'episodes':>8} {'requests':>8} {'sampled':>8} {'wrong':>6} {'flat':>8} {'tree':>8} {'ratio':>6}  causes"
    )
    total = Drifted()
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder)) as mongod:
        for number, kind in enumerate(name for name in DRIFTS if only in name):
            found = Drifted()
            for seed in range(episodes):
                async with Store.open(mongod.connection_string, f"drift-{number}-{seed}") as store:
                    await store.ensure_indexes()
                    found.add(await drifted(store, kind, seed))
                    await store.client.drop_database(store.run)
            print(line_of(kind, episodes, found), flush=True)
            total.add(found)
    print(line_of("all", episodes * len(DRIFTS), total))
    return 1 if total.wrong else 0


def line_of(kind: str, episodes: int, found: Drifted) -> str:
    counts = f"{found.requests:>8} {found.sampled:>8} {found.wrong:>6} {found.flat:>8} {found.tree:>8}"
    causes = ", ".join(f"{name} {count}" for name, count in found.causes.most_common())
    return f"{kind:22} {episodes:>8} {counts} {found.flat / found.tree:>6.2f}  {causes}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20, help="of each kind")
    parser.add_argument("--only", default="", help="a word of the kinds to play")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.episodes, given.only)))
