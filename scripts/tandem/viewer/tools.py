"""The page on tools: which is called how often, which breaks, which replies cannot be parsed, how episodes end."""

from collections import Counter
from dataclasses import dataclass

from shared.names import SPLITS, TRAIN_SPLIT
from shared.store.views.query import Document, Query
from shared.store.views.rollouts import LOOKED_THROUGH
from shared.store.views.tools import what_broke
from tandem.viewer.page_request import PageRequest, check_split


@dataclass(frozen=True, slots=True)
class ToolsView:
    split: str
    splits: tuple[str, ...]
    episodes: int
    most: int
    turns: int
    tools: list[Document]
    broken: list[Document]
    terminations: list[tuple[str, int]]
    queries: list[Query]


async def tools_page(request: PageRequest) -> ToolsView:
    split = check_split(request.text("split", TRAIN_SPLIT) or TRAIN_SPLIT)
    episodes, tools, broken, queries = await what_broke(request.store.database, split)
    return ToolsView(
        split=split,
        splits=SPLITS,
        episodes=len(episodes),
        most=LOOKED_THROUGH,
        turns=sum(int(document.get("num_turns") or 0) for document in episodes),
        tools=tools,
        broken=broken,
        terminations=Counter(str(document.get("termination")) for document in episodes).most_common(),
        queries=queries,
    )
