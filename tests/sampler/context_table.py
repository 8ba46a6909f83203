"""`python -m tests.sampler.context_table`: each context policy on the same long episode, as a table (Markdown).

Real tools, a real database; the policy's replies are scripted. One line per request at which a context policy gave another
history: the last request and its reply (the newest results would have come on top), what the model saw instead, how much of it
is shared in the token tree; then what the episode gives to training.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.documents.states import BranchCause
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.boxes import start_box
from tests.sampler.chats import chat
from tests.sampler.context_episodes import ANSWER, PAGES, Played, check_token_exactness, played
from tests.sampler.test_mcp_sampler import calls

BUDGET: dict[str, Any] = {"context_budget_tokens": 1600}
SAME = [f"Once more.\n{calls('big', n_chars=400)}"] * 3
COMPRESS = {"repetition_early_stop_times": 3, "enable_repetition_compress": True}
EPISODES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "disabled": (PAGES, {}),
    "discard_all_tools": (PAGES, {"new_context": "discard_all_tools"} | BUDGET),
    "discard_all, summary by the policy": (PAGES, {"new_context": "discard_all"} | BUDGET),
    "discard_all, summary by an agent": (
        PAGES,
        {"new_context": "discard_all", "context_summary": "browse_agent"} | BUDGET,
    ),
    "repetition_early_stop_times: 3": ([*PAGES[:1], *SAME], {"repetition_early_stop_times": 3}),
    "… with compress, discard_all_tools": ([*PAGES[:1], *SAME], {"new_context": "discard_all_tools"} | COMPRESS),
    "… with compress, discard_all": ([*PAGES[:1], *SAME], {"new_context": "discard_all"} | COMPRESS),
}
HEAD = (
    "policy", "request", "before: tokens (messages)", "after", "shared prefix", "cause",
    "ending", "requests", "branches", "trained tokens", "tree tokens", "exact",
)  # fmt: skip
TEMPLATE = chat("qwen")


def lines(name: str, episode: Played) -> Iterator[tuple[str, ...]]:
    for index, dispatch in enumerate(episode.dispatches):
        if dispatch.branch_cause is BranchCause.CONTEXT_POLICY:
            before, after = episode.prompts[index - 1] + episode.outputs[index - 1], episode.prompts[index]
            places = (_size(before), _size(after), dispatch.shared_length, dispatch.branch_cause.value)
            yield (name, f"{index + 1}", *map(str, places), *[""] * 6)
            name = ""
    check_token_exactness(episode)
    record, data = episode.record, episode.data
    totals = (len(episode.prompts), len(episode.tree.leaves()), data.num_trained_tokens, data.num_tokens, "yes")
    yield (name, *[""] * 5, record.termination or "", *map(str, totals))


def _size(prompt: list[int]) -> str:
    return f"{len(prompt)} ({TEMPLATE.decode(prompt).count('<|im_start|>')})"


async def main() -> None:
    table: list[tuple[str, ...]] = [HEAD, ("---",) * len(HEAD)]
    box = start_box()
    try:
        with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder)) as mongod:
            async with Store.open(mongod.connection_string, "context_table") as store:
                for number, (name, (replies, options)) in enumerate(EPISODES.items()):
                    episode = await played(store, box.server, [*replies, ANSWER], number=number, **options)
                    table += lines(name, episode)
    finally:
        box.kill()
    widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
    for row in table:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


if __name__ == "__main__":
    asyncio.run(main())
