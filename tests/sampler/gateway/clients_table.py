"""Agents that others wrote play an episode through the gateway, each as a command of its own environment.

python -m tests.sampler.gateway.clients_table --python .venv_agents/bin/python

The packages (in an environment of their own, since they pin others than ours):
    python -m venv .venv_agents
    .venv_agents/bin/pip install langgraph langchain langchain-openai langchain-mcp-adapters openai-agents \\
        'pydantic-ai-slim[openai,anthropic]' 'smolagents[openai]' google-genai

The engine is scripted: it calls `add` twice at once, then once, then answers; its ids are none that a tokenizer gives. Prints a
table, and ends with 1 if an agent fails or an id that would be trained is not the engine's.
"""

import argparse
import asyncio
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared.documents import DispatchedSamplingTask
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, call, played, trained_ids

HERE = Path(__file__).parent / "clients"
PAGE = (Path(__file__).parents[3] / "docs" / "any_agent.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(BEGINNING,) = (block for block in BLOCKS if block.startswith("import os, sys"))
CLIENTS = [  # package, dialect, streamed, script and arguments, or what the page's block imports
    ("langgraph", "chat", False, "import create_agent"),
    ("langgraph", "chat", True, "langgraph_react.py stream"),
    ("langchain-mcp-adapters", "chat", False, "langgraph_react.py mcp {python} {box} stdio"),
    ("openai-agents", "responses", False, "import Agent, Runner"),
    ("openai-agents", "responses", True, "openai_agents.py stream"),
    ("openai-agents", "chat", False, "openai_agents.py chat"),
    ("openai-agents", "chat", True, "openai_agents.py chat stream"),
    ("pydantic-ai-slim", "chat", False, "import OpenAIChatModel"),
    ("pydantic-ai-slim", "chat", True, "pydantic_ai_agent.py openai stream"),
    ("pydantic-ai-slim", "messages", False, "pydantic_ai_agent.py anthropic"),
    ("pydantic-ai-slim", "messages", True, "pydantic_ai_agent.py anthropic stream"),
    ("google-genai", "google", False, "import genai"),
    ("google-genai", "google", True, "google_genai.py"),
    ("smolagents", "chat", False, "import OpenAIServerModel"),
]
BOX = Path(__file__).parents[1] / "tool_servers" / "box.py"


def reply_to(tool: str, final: str) -> "list[str]":
    return [f"I add.\n{call(tool, a=1, b=2)}\n{call(tool, a=3, b=4)}", call(tool, a=3, b=7), final]


async def row(
    folder: Path, store: Store, python: str, package: str, dialect: str, streamed: bool, script: str
) -> tuple[str, bool]:
    final = call("final_answer", answer="<answer>4</answer>") if package == "smolagents" else "<answer>4</answer>"
    engine = ScriptedEngine(reply_to("add", final))
    command = f"{python} {HERE}/" + script.format(python=sys.executable, box=BOX)
    if script.startswith("import "):  # a file: smolagents reads the source of its tools
        command = shlex.join([python, str(block_of(script, folder))])
    record, _, dispatches = await played(store, engine, None, agent_command=command)
    same = trained_ids(dispatches) == engine.exchanges
    kinds = [kind_of(dispatch, dispatches) for dispatch in dispatches]
    called = sum(len(dispatch.tool_calls) for dispatch in dispatches)
    counted = " ".join(f"{kinds.count(kind):>6}" for kind in ("bridge", "fork", "root"))
    version = await asyncio.to_thread(version_of, python, package)
    causes = {name.removeprefix("agent_"): int(count) for name, count in record.metrics.items()}
    tokens = sum(len(reply) for _, reply in engine.exchanges)
    line = f"{package:24} {version:10} {dialect:9} {streamed!s:8} {called:5} {len(dispatches):8} {counted} {tokens:7} {same!s:5}"
    problem = f"\n    {record.termination} {record.error}" if record.error else ""
    return f"{line} {record.score} {causes}{problem}", same and record.error is None


def block_of(words: str, folder: Path) -> Path:
    """The script that the page shows for these words."""
    (found,) = (block for block in BLOCKS if words in block)
    file = folder / f"{words.replace(' ', '_')}.py"
    file.write_text(BEGINNING + found, encoding="utf-8")
    return file


def version_of(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def kind_of(dispatch: DispatchedSamplingTask, dispatches: Sequence[DispatchedSamplingTask]) -> str:
    parents = {
        one.id: ids for one, ids in zip([d for d in dispatches if d.response], trained_ids(dispatches), strict=True)
    }
    if dispatch.parent is None:
        return "root"
    prompt, reply = parents[dispatch.parent]
    return "bridge" if dispatch.shared_length == len(prompt) + len(reply) else "fork"


async def main(python: str, only: str) -> int:
    print(f"{'package':24} {'version':10} {'dialect':9} {'streamed':8} {'tools':5} {'requests':8} bridge   fork   root "
          f"{'sampled':7} {'same':5} score causes")  # fmt: skip
    good = True
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder)) as mongod:
        for number, client in enumerate(one for one in CLIENTS if only in " ".join(map(str, one))):
            async with Store.open(mongod.connection_string, f"clients-{number}") as store:
                text, passed = await row(Path(folder), store, python, *client)
            print(text, flush=True)
            good = good and passed
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the interpreter of the environment with the agents' packages")
    parser.add_argument("--only", default="", help="a word of the rows to play")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(str(Path(given.python).absolute()), given.only)))
