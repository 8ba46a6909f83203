"""A table of agents against endpoints that behave and misbehave: `python -m tests.sampler.agents.agents_table` (Markdown).

Every row is real HTTP on this machine: endpoints of the tests, and the local engine with the bundled model. Ends with status 1
where a row is not as expected.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from sampler.core.errors import AgentFailed
from shared.documents.agent_use import AgentUse
from shared.processes.mongod import free_port
from tests.contract.engines import MODEL, running
from tests.sampler.agents.agents import browser, judge, models
from tests.sampler.agents.endpoints import BAD, Service, endpoint

STATUSES = ["status 400", "status 401", "status 404", "status 429 retry-after 0.2", "status 500", "status 503"]
TEXT = "Paris has 2102650 people.\nRome has hills.\n" * 4
Ask = Callable[[list[Service]], Awaitable[tuple[str, AgentUse]]]
NOBODY = f"http://127.0.0.1:{free_port()}/v1"


async def ask_judge(services: list[Service]) -> tuple[str, AgentUse]:
    agent = judge(models=models(services, max_tokens=24))
    try:
        verdict = await agent.verdict("2+2?", "4", "It is 4.")
        return f"score {float(verdict.is_correct):g}", verdict.use
    except AgentFailed as exc:
        return "no score", exc.use
    finally:
        await agent.close()


async def ask_browser(services: list[Service]) -> tuple[str, AgentUse]:
    agent = browser(models=models(services, max_tokens=24))
    try:
        summary = await agent.summary_of(TEXT, "How many people has Paris?")
        return f"summary {summary.text.splitlines()[0][:26]!r}", summary.use
    except AgentFailed as exc:
        return "no summary", exc.use
    finally:
        await agent.close()


async def rows(engine_url: str) -> AsyncIterator[tuple[bool, list[str]]]:
    """Cells, and whether the row is as expected: an answer if and only if one endpoint behaves well."""
    for agent, ask, well in (("judge", ask_judge, "judges"), ("browse", ask_browser, "summarizes")):
        yield await row(agent, ask, [well], well)
        for bad in [*STATUSES, *BAD, *(["says Hm."] if agent == "judge" else [])]:
            yield await row(agent, ask, [bad], well, well)
        yield await row(agent, ask, ["nobody listens"], well, well)
        yield await row(agent, ask, ["status 500"], None, "garbage", "nobody listens")
        local = well if agent == "judge" else "local engine"  # the bundled model answers, but without a verdict
        yield await row(agent, ask, ["local engine"], local, well, url=engine_url)


async def row(
    agent: str, ask: Ask, first: list[str], answers: str | None, *others: str, url: str = NOBODY
) -> tuple[bool, list[str]]:
    names = [*first, *others]
    async with AsyncExitStack() as stack:
        services = [
            Service([], url)
            if name in ("nobody listens", "local engine")
            else await stack.enter_async_context(endpoint(name))
            for name in names
        ]
        outcome, use = await ask(services)
    who = names[int(use.model[1:]) - 1] if use.model else None
    errors = list(dict.fromkeys(f"{f.model}: {f.error}" for f in use.failures))
    cells = [agent, " → ".join(names), outcome, who or "–", str(len(use.failures)), f"{use.duration_s:.2f}"]
    return who == answers, [*cells, "; ".join(error[:60] for error in errors)]


async def main() -> int:
    write("| agent | models, in order | outcome | answered by | failures before | s | what failed |")
    write("|---|---|---|---|---|---|---|")
    is_good = True
    with tempfile.TemporaryDirectory() as folder, running("local", MODEL, Path(folder) / "engine.log") as engine:
        async for is_expected, cells in rows(f"{engine}/v1"):
            mark = "" if is_expected else " **(not what was expected)**"
            write(f"| {' | '.join(cell.replace('|', '/') for cell in cells)}{mark} |")
            is_good = is_good and is_expected
    return 0 if is_good else 1


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)  # every failure is in the table
    sys.exit(asyncio.run(main()))
