"""A table of the public MCP servers that our client was tried against: `python -m tests.sampler.mcp_table` (Markdown).

Needs scripts/setup_mcp_servers.sh. Ends with status 1 where a server is missing or an answer is not the expected one.
"""

import asyncio
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from sampler.core.tools import ToolSession
from tests.sampler.foreign import FOREIGN, Case, World, foreign_world

MAX_ANSWER_CHARS = 110


@dataclass(frozen=True)
class Answer:
    case: Case
    text: str
    is_error: bool

    @property
    def is_expected(self) -> bool:
        return self.is_error == self.case.is_error and re.search(self.case.says, self.text, re.DOTALL) is not None


async def play(world: World, name: str, transport: str) -> tuple[int, list[Answer]]:
    """How many tools the server offers, and its answers to all of its cases, in one session."""
    with world.serve(name, transport) as server:
        async with ToolSession([server]) as session:
            answers = []
            for case in FOREIGN[name].cases:
                result = await session.call(case.tool, world.fill(case.arguments), timeout_s=30)
                answers.append(Answer(case, result.text, result.is_error))
            return len(session.list_tools()), answers


def rows(world: World) -> Iterator[tuple[bool, str]]:
    """Lines of the table, and whether each is as expected."""
    yield True, "| server | version | transport | tools offered | tool called | what it answered |"
    yield True, "|---|---|---|---|---|---|"
    for name, foreign in FOREIGN.items():
        if foreign.version is None:
            yield False, f"| {foreign.package} | not installed | | | | |"
            continue
        for transport in foreign.transports:
            num_tools, answers = asyncio.run(play(world, name, transport))
            head = f"{foreign.package} | {foreign.version} | {transport} | {num_tools}"
            for answer in answers:
                yield answer.is_expected, f"| {head} | {answer.case.tool} | {_told(answer, world)} |"
                head = " | | | "


def _told(answer: Answer, world: World) -> str:
    text = " ".join(answer.text.replace(str(world.root), "ROOT").split()).replace("|", "\\|")
    short = text if len(text) <= MAX_ANSWER_CHARS else text[:MAX_ANSWER_CHARS] + "…"
    unexpected = "" if answer.is_expected else " **(not what was expected)**"
    return f"{'error: ' if answer.is_error else ''}{short}{unexpected}"


def main() -> int:
    is_good = True
    with foreign_world() as world:
        for is_expected, line in rows(world):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            is_good = is_good and is_expected
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
