"""Agents that others wrote play an episode through the gateway, each as a command of its own environment.

python -m tests.sampler.gateway.clients_table --python .venv_agents/bin/python [--python .venv_dspy/bin/python …]

The packages (in environments of their own, since they pin others than ours, and some others than each other):
    python -m venv .venv_agents
    .venv_agents/bin/pip install langgraph langchain langchain-openai langchain-mcp-adapters openai-agents \\
        'pydantic-ai-slim[openai,anthropic]' 'smolagents[openai]' google-genai
    for name in crewai dspy verifiers 'llama-index-core llama-index-llms-openai-like' 'autogen-agentchat autogen-ext[openai]'

A row uses the first environment that has its package, and is left out, with a line, where none has. The engine is scripted: it
calls `add` twice at once, then once, then answers; its ids are none that a tokenizer gives, and their log-probs are the bundled
model's. Prints a table, and ends with 1 if an agent fails, an id that would be trained is not the engine's, or `tandem verify`
computes other log-probs. `ignored`: what of the requests changed nothing, by path.
"""

import argparse
import asyncio
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sampler.core.episode.episode import play
from sampler.gateway.agent_sandbox import AgentSandbox
from shared.documents import DispatchedSamplingTask
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.episodes import ended
from tests.sampler.gateway.agents import ScriptedEngine, an_episode, call, trained_ids
from tests.sampler.gateway.model_scored import ModelScoredEngine, verified

HERE = Path(__file__).parent / "clients"
PAGE = (Path(__file__).parents[3] / "docs" / "bring" / "any_agent.md").read_text(encoding="utf-8")
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
    ("crewai", "chat", False, "crewai_agent.py"),
    ("crewai", "chat", True, "crewai_agent.py stream"),
    ("autogen-agentchat", "chat", False, "autogen_agent.py"),
    ("autogen-agentchat", "chat", True, "autogen_agent.py stream"),
    ("llama-index-core", "chat", False, "llama_index_agent.py"),
    ("llama-index-core", "chat", True, "llama_index_agent.py stream"),
    ("dspy", "chat", False, "dspy_react.py"),
    ("dspy", "chat", True, "dspy_react.py stream"),
    ("verifiers", "chat", False, "verifiers_env.py"),
]
BOX = Path(__file__).parents[1] / "tool_servers" / "box.py"


MOST = 1 << 20  # tokens of a context: these packages' prompts are long for a vocabulary of 424
TOLERANCE = 1e-4  # nats
HEADING = (
    f"{'package':25} {'version':10} {'dialect':9} {'streamed':8} {'tools':5} {'requests':8} bridge   fork   root "
    f"{'sampled':7} {'same':5} {'verify':7} score causes, ignored"
)


def replies_to(package: str) -> list[str]:
    final = "<answer>4</answer>"
    if package == "dspy":
        steps = [fields_of(a=1, b=2), fields_of(a=3, b=4), fields_of(a=3, b=7), fields_of()]
        return [*steps, _marked(reasoning="I added.", answer=final)]
    last = call("final_answer", answer=final) if package == "smolagents" else final
    return [f"I add.\n{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}", call("add", a=3, b=7), last]


def fields_of(**arguments: int) -> str:
    """A step of DSPy's ReAct, whose fields are marked in the text; without arguments, the last."""
    tool = "add" if arguments else "finish"
    return _marked(next_thought="I add.", next_tool_name=tool, next_tool_args=json.dumps(arguments))


def _marked(**fields: str) -> str:
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in [*fields.items(), ("completed", "")])


async def row(
    folder: Path, store: Store, isolation: str, python: str, package: str, dialect: str, streamed: bool, script: str
) -> tuple[str, bool]:
    command = f"{shlex.quote(python)} {shlex.quote(str(HERE))}/" + script.format(
        python=shlex.quote(sys.executable), box=shlex.quote(str(BOX))
    )
    if script.startswith("import "):  # a file: smolagents reads the source of its tools
        command = shlex.join([python, str(block_of(script, folder))])
    version = await asyncio.to_thread(version_of, python, package)
    engine = ModelScoredEngine(replies_to(package))
    return await line_of(store, engine, command, package, version, dialect, streamed, isolation)


async def line_of(
    store: Store,
    engine: ScriptedEngine,
    command: str,
    package: str,
    version: str,
    dialect: str,
    streamed: bool,
    isolation: str = "none",
) -> tuple[str, bool]:
    """A line of the table for an episode that `command` plays, and whether all is well."""
    options = {"max_tokens": MOST, "max_prompt_tokens": MOST, "agent_command": command}
    if isolation != "none":
        options |= {"agent_isolation": isolation, "agent_readable": [BOX.parent]}  # its own modules are next to it
    async with an_episode(store, engine, None, **options) as sampler:
        await play(sampler)
        await sampler.resources.opened.of(AgentSandbox).close()
        record, _, dispatches = await ended(store, sampler)
        worst = float("nan")
        if record.error is None and isinstance(engine, ModelScoredEngine):
            _, worst = await verified(store, sampler.config)
    same = trained_ids(dispatches) == engine.exchanges
    kinds = [kind_of(dispatch, dispatches) for dispatch in dispatches]
    called = sum(len(dispatch.tool_calls) for dispatch in dispatches)
    counted = " ".join(f"{kinds.count(kind):>6}" for kind in ("bridge", "fork", "root"))
    counts = {name.removeprefix("agent_"): int(count) for name, count in record.metrics.items()}
    causes = {name: count for name, count in counts.items() if not name.startswith("overridden_")}
    ignored = sorted({name for one in dispatches if one.client for name in one.client.overridden})
    tokens = sum(len(reply) for _, reply in engine.exchanges)
    line = f"{package:25} {version:10} {dialect:9} {streamed!s:8} {called:5} {len(dispatches):8} {counted} {tokens:7} {same!s:5}"
    problem = f"\n    {record.termination} {record.error}" if record.error else ""
    return (
        f"{line} {worst:7.1e} {record.score} {causes} {', '.join(ignored) or '-'}{problem}",
        same and not worst > TOLERANCE and not record.error,
    )


def block_of(words: str, folder: Path) -> Path:
    """The script that the page shows for these words."""
    (found,) = (block for block in BLOCKS if words in block)
    file = folder / f"{words.replace(' ', '_')}.py"
    file.write_text(BEGINNING + found, encoding="utf-8")
    return file


@cache
def version_of(python: str, package: str) -> str:
    """Empty where it is not installed."""
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


async def main(pythons: Sequence[str], only: str, isolation: str) -> int:
    print(HEADING)
    good = True
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder)) as mongod:
        for number, client in enumerate(one for one in CLIENTS if only in " ".join(map(str, one))):
            python = next((one for one in pythons if version_of(one, client[0])), None)
            if python is None:
                print(f"{client[0]:24} not installed")
                continue
            async with Store.open(mongod.connection_string, f"clients-{number}") as store:
                text, passed = await row(Path(folder), store, isolation, python, *client)
            print(text, flush=True)
            good = good and passed
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", action="append", required=True, help="an interpreter of an environment with agents' packages"
    )
    parser.add_argument("--only", default="", help="a word of the rows to play")
    parser.add_argument("--isolation", default="none", help="agent_isolation: process, bubblewrap or container")
    given = parser.parse_args()
    sys.exit(asyncio.run(main([str(Path(one).absolute()) for one in given.python], given.only, given.isolation)))
