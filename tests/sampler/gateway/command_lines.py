"""Command-line agents from npm, and a script with the AI SDK, play an episode through the gateway, unchanged, as `agent_command`.

mkdir .npm_agents && cd .npm_agents && npm install @anthropic-ai/claude-code @openai/codex opencode-ai @google/gemini-cli \\
    @qwen-code/qwen-code ai @ai-sdk/openai zod
unshare -n sh -c 'ip link set lo up; exec python -m tests.sampler.gateway.command_lines --npm .npm_agents'

In a network namespace of its own, as above (as root), no agent can reach any host but the gateway. Each has a home directory of
its own, which is empty. The engine is scripted: it calls the agent's own shell twice at once, then once, then answers. Prints
the table of `clients_table`, without the trainer's check: the bundled model takes minutes for prompts of 20,000 tokens. `--record
FOLDER` keeps the requests as transcripts, which
`test_transcripts` replays.
"""

import argparse
import asyncio
import hashlib
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sampler.gateway.app
from shared.files.written_file import write_text_whole
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, call
from tests.sampler.gateway.clients_table import HEADING, HERE, line_of

OPENCODE = {
    "model": "tandem/main",
    "small_model": "tandem/main",
    "provider": {
        "tandem": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"main": {}},
        }
    },
    "permission": "allow",
    "share": "disabled",
    "autoupdate": False,
}
CODEX = """exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m "$OPENAI_MODEL" \
-c model_provider=tandem -c "model_providers.tandem={name='tandem', base_url='$OPENAI_BASE_URL', env_key='OPENAI_API_KEY'}" -"""


SHELL = ("bash", "command")
HEADERS = ("anthropic-beta", "anthropic-version", "x-stainless-retry-count", "accept", "user-agent")
IDENTITIES = ("client_metadata", "metadata", "prompt_cache_key")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FOLDERS = re.compile(r"/(?:tmp|work|root)/[\w./-]*")
MAX_CHARS = 120
TOOLS = 3


@dataclass(frozen=True)
class CommandLine:
    """`shell`: its tool that runs commands, and the name of the argument. `env`: beyond what the gateway gives."""

    package: str
    dialect: str
    command: str
    shell: tuple[str, str]
    env: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)  # arguments that the tool requires
    files: dict[str, str] = field(default_factory=dict)  # in the home directory
    streamed: bool = True


AGENTS = [
    CommandLine(
        "@anthropic-ai/claude-code",
        "messages",
        "claude -p --allowedTools Bash --permission-mode acceptEdits",
        ("Bash", "command"),
        {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    ),
    CommandLine("@openai/codex", "responses", shlex.join(["sh", "-c", CODEX]), ("exec_command", "cmd")),
    CommandLine(
        "opencode-ai",
        "chat",
        "opencode run --model tandem/main",
        ("bash", "command"),
        {"OPENCODE_CONFIG_CONTENT": json.dumps(OPENCODE), "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        {"description": "Adds."},
    ),
    CommandLine(
        "@google/gemini-cli",
        "google",
        "gemini --yolo --skip-trust",
        ("run_shell_command", "command"),
        files={".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'},
    ),
    CommandLine(
        "@qwen-code/qwen-code",
        "chat",
        "qwen --yolo --auth-type openai",
        ("run_shell_command", "command"),
        {},
        {"is_background": False},
    ),
    *(
        CommandLine("ai", dialect, f"node {HERE}/vercel_ai.cjs {dialect} {how}", SHELL, streamed=how == "stream")
        for dialect in ("chat", "responses")
        for how in ("text", "stream", "object")
    ),
]


def replies_of(agent: CommandLine) -> Callable[[str], str]:
    name, argument = agent.shell

    def reply(prompt: str) -> str:
        """By the results that are there; without the shell (for a title) a few words, or the form that is demanded."""
        if f"\n{name}(" not in prompt:
            return '{"total": 4}' if '{"total"' in prompt else "Adding numbers"
        calls = [call(name, **{argument: f"echo $((3+{n}))", **agent.more}) for n in (1, 2, 4)]
        done = prompt.count("<tool_response>")
        return "\n".join(calls[:2]) if done == 0 else calls[2] if done < 3 else "<answer>4</answer>"

    return reply


def recording(transcript: Path) -> None:
    """Keep the requests to the gateway, sanitized, in this file."""
    build = sampler.gateway.app.build_app
    kept: list[dict[str, Any]] = []

    def build_recording(*args: Any, **options: Any) -> Any:
        inner = build(*args, **options)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            body = bytearray()

            async def received() -> Any:
                event = await receive()
                body.extend(event.get("body", b""))
                return event

            try:
                await inner(scope, received, send)
            finally:
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                if body:
                    given = {name: headers[name] for name in HEADERS if name in headers}
                    kept.append({"path": scope["path"], "headers": given, "body": sanitized(json.loads(body))})
                    write_text_whole(transcript, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")

        return app

    sampler.gateway.app.build_app = build_recording


def sanitized(value: Any, name: str = "") -> Any:
    """Without identities and paths; a long text is its beginning and its hash, and of the tools a few stay."""
    if isinstance(value, dict):
        return {key: sanitized(one, key) for key, one in value.items() if key not in IDENTITIES}
    if isinstance(value, list):
        many = name in ("tools", "functionDeclarations") and len(value) > TOOLS
        return [sanitized(one) for one in ([one for one in value if kept_tool(one)] if many else value)]
    if not isinstance(value, str):
        return value
    text = FOLDERS.sub("/home/me", UUID.sub("0" * 8, value))
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:40]} … {hashlib.sha256(text.encode()).hexdigest()[:8]}".replace("\n", " ")


def kept_tool(tool: Any) -> bool:
    """The shells, and what has no name or no schema of its own."""
    name = tool.get("function", tool).get("name")
    return tool.get("type") not in (None, "function", "custom") or name in {agent.shell[0] for agent in AGENTS}


async def main(npm: Path, only: str, record: Path | None) -> int:
    print(HEADING)
    good, modules = True, npm / "node_modules"
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder) / "db") as mongod:
        for number, agent in enumerate(one for one in AGENTS if only in one.package):
            packed = modules / agent.package / "package.json"
            if not packed.exists():
                print(f"{agent.package:25} not installed")
                continue
            if record is not None:
                recording(record / f"{agent.package.rpartition('/')[2]}.json")
            (home := Path(folder) / f"home-{number}").mkdir()
            for name, text in agent.files.items():
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).write_text(text)
            env = {
                **agent.env,
                "HOME": str(home),
                "PATH": f"{modules / '.bin'}:/usr/bin:/bin",
                "NODE_PATH": str(modules),
            }
            command = shlex.join(["env", *(f"{name}={value}" for name, value in env.items())]) + " " + agent.command
            version = json.loads(packed.read_text())["version"]
            async with Store.open(mongod.connection_string, f"cli-{number}") as store:
                text, passed = await line_of(
                    store,
                    ScriptedEngine(replies_of(agent)),
                    command,
                    agent.package,
                    version,
                    agent.dialect,
                    agent.streamed,
                )
            print(text, flush=True)
            good = good and passed
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npm", type=Path, required=True, help="the folder in which npm installed the packages")
    parser.add_argument("--only", default="", help="a word of the packages to play")
    parser.add_argument("--record", type=Path, help="folder for transcripts")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.npm.absolute(), given.only, given.record)))
