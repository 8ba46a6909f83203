"""Each way in which an SDK or a framework demands a form of the answer, played as a command through the gateway, and scored.

python -m tests.sampler.gateway.structured --python .venv_agents/bin/python

The packages: openai anthropic google-genai openai-agents 'pydantic-ai-slim[openai]' instructor. A way whose package the
environment lacks is left out, with a line. The engine is scripted. Prints a table, and ends with 1 if the schema is in no
prompt, an id that would be trained is not the engine's, or a score is not 1.
"""

import argparse
import asyncio
import shlex
import sys
import tempfile
from pathlib import Path

from sampler.core.episode.episode import play
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.episodes import TEMPLATE, ended
from tests.sampler.gateway.agents import ScriptedEngine, an_episode, call, trained_ids
from tests.sampler.gateway.clients_table import HERE, version_of

MOST = 1 << 20
WAYS = [  # function of clients/structured_output.py, package
    ("chat_json_schema", "openai"),
    ("chat_json_object", "openai"),
    ("responses_text_format", "openai"),
    ("anthropic_output_config", "anthropic"),
    ("anthropic_output_format", "anthropic"),
    ("google_json_schema", "google-genai"),
    ("google_schema", "google-genai"),
    ("openai_agents", "openai-agents"),
    ("pydantic_ai", "pydantic-ai-slim"),
    ("instructor_tools", "instructor"),
    ("instructor_json_schema", "instructor"),
]


async def line_of(store: Store, python: str, way: str, package: str) -> tuple[str, bool]:
    """A line of the table, and whether all is well."""
    version = await asyncio.to_thread(version_of, python, package)
    if not version:
        return f"{way:24} {package} is not installed", True
    reply = call("Total", total=7) if way == "instructor_tools" else '{"total": 7}'
    engine = ScriptedEngine(lambda prompt: reply)
    command = shlex.join([python, f"{HERE}/structured_output.py", way])
    async with an_episode(
        store, engine, None, max_tokens=MOST, max_prompt_tokens=MOST, agent_command=command
    ) as sampler:
        await play(sampler)
        record, _, dispatches = await ended(store, sampler)
    prompt = TEMPLATE.decode(engine.exchanges[0][0]) if engine.exchanges else ""
    told = {"chat_json_object": "one JSON object", "instructor_tools": "Total(total)"}.get(way, '"total"') in prompt
    same = trained_ids(dispatches) == engine.exchanges
    unused = sorted({name for one in dispatches if one.client for name in one.client.overridden})
    problem = f"\n    {record.termination} {record.error}" if record.error else ""
    line = f"{way:24} {package:17} {version:8} {told!s:6} {same!s:5} {record.score} {', '.join(unused) or '-'}{problem}"
    return line, told and same and record.score == 1.0


async def main(python: str) -> int:
    print(f"{'way':24} {'package':17} version  prompt ids   score unused")
    good = True
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder)) as mongod:
        for number, (way, package) in enumerate(WAYS):
            async with Store.open(mongod.connection_string, f"structured-{number}") as store:
                line, passed = await line_of(store, python, way, package)
            print(line, flush=True)
            good = good and passed
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter of an environment with the packages")
    sys.exit(asyncio.run(main(str(Path(parser.parse_args().python).absolute()))))
