"""A tour through the adapters: every environment that the real packages have, played over the wire, and a table of what failed.

    python -m tests.sampler.environments.tour --games /venvs/games/bin/python --agentrl … --openenv … --mariadb …

Each option is a Python that has the packages; a part without one is left out, the bundled worlds always play. An episode's
replies are drawn by a seed: moves that the world's own texts show, and replies as weak models give them (empty, a number of
5,000 digits, half a bracket). Every answer is read as the sampler reads it, and one seed must give one world twice.

A failure is ours where our code raised it, where an answer is none of the protocol, where one seed gave two worlds, or where
numpy's words are shown to the model; it is the package's where a file of the package raised it.
"""

import argparse
import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from sampler.core.errors import EnvironmentFailed
from sampler.environments.answers import StepReply, step_of
from sampler.environments.environment import FINAL
from tests.sampler.environments.services import Service, service
from tests.sampler.environments.test_openenv import counting

MAX_TURNS = 40
MAX_PLAYERS = 8
NUM_EPISODES = 3
WEAK = (
    "",
    "I do not know.",
    "[",
    "[]",
    "[9]",
    "[-1 -1]",
    "[a b c d]",
    "[1, 2] [3]",
    "[" + "9" * 5000 + "]",
    "9" * 5000,
    "[²]",
    "[٣]",
    "\U0001f642",
    "x " * 10_000,
    "<answer></answer>",
    "<answer>[[1, 2], [3</answer>",
    "<answer>None</answer>",
    "<answer>1/0</answer>",
    "<answer>nan</answer>",
    "<answer>{}</answer>",
    "<action></action>",
    "\x00",
)
_SHOWN = re.compile(r"\[[^\[\]\n]{1,40}\]")
_NUMPY = re.compile(r"\b(np\.\w+\(|array\(|dtype=)")
_RAISED = re.compile(r"\(in ([^()]+\.py:\d+)\)")
# Words of ours for what a package's code did: its reward is a text, or it did not come back.
_THEIRS = re.compile(r"^RuntimeError: textarena's |status 'task error'|did not answer \w+ within")
LISTED = """
import json, gymnasium, textarena, reasoning_gym
from importlib.metadata import version
from reasoning_gym.factory import DATASETS
games = [name[:-4] for name in textarena.envs.registration.ENV_REGISTRY if name.endswith("-raw")]
told = {"gymnasium": sorted(gymnasium.envs.registry), "textarena": sorted(games), "reasoning_gym": sorted(DATASETS)}
versions = {name: version(name) for name in told}
print(json.dumps([told, versions]))
"""


class Unplayable(Exception):
    """The environment refuses every way to begin; the text says why."""


@dataclass
class Row:
    """What happened in one package's environments. `failures`: texts with the environments in which they occurred."""

    package: str
    tried: int = 0
    played: int = 0
    episodes: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    refused: dict[str, list[str]] = field(default_factory=dict)
    ours: dict[str, list[str]] = field(default_factory=dict)
    theirs: dict[str, list[str]] = field(default_factory=dict)

    def failed(self, name: str, why: str) -> None:
        """By where it was raised."""
        raised = _RAISED.search(why)
        is_theirs = _THEIRS.search(why) or (raised is not None and not raised[1].startswith("sampler/"))
        (self.theirs if is_theirs else self.ours).setdefault(why, []).append(name)

    def line(self) -> str:
        failures = [f"{sum(map(len, found.values()))}" for found in (self.ours, self.theirs)]
        refused = sum(map(len, self.refused.values()))
        return (
            f"| {self.package} | {self.tried} | {self.played} | {refused} | {self.episodes} | {' | '.join(failures)} |"
        )


def play(one: Service, row: Row, kind: str, num_episodes: int) -> None:
    """Some episodes of one environment, the first of them twice."""
    row.tried += 1
    transcripts = []
    for episode in (0, *range(num_episodes)):
        try:
            told, end = _episode(one, kind, episode)
        except Unplayable as exc:
            row.refused.setdefault(str(exc), []).append(kind)
            return
        except EnvironmentFailed as exc:
            row.failed(kind, str(exc))
            told, end = [], "failure"
        row.episodes += 1
        row.ends[end] += 1
        if any(_NUMPY.search(text) for text in told):
            row.failed(kind, f"it shows the model numpy's words: {next(t for t in told if _NUMPY.search(t))[-80:]!r}")
        transcripts.append(told)
    row.played += 1
    if transcripts[0] != transcripts[1]:
        row.failed(kind, "one seed gave two worlds")


def _episode(one: Service, kind: str, seed: int) -> tuple[list[str], str]:
    """The texts of the world, and how it ended. Raises EnvironmentFailed and Unplayable."""
    session, step = _started(one, kind, seed)
    replies = random.Random(f"{kind}{seed}")
    told, shown = [], list[str]()
    try:
        for _ in range(MAX_TURNS):
            texts = [str(message.get("content")) for message in step.messages]
            told += texts
            shown += [move for text in texts for move in _SHOWN.findall(text)]
            if step.finish:
                told.append(f"{step.status} {step.reward} {dict(step.rewards)}")
                return told, str(step.termination)
            step = _said(one, session, _reply(replies, shown[-60:], step, seed))
        return told, "cut"
    finally:
        one.http.post("/cancel", headers=session)


def _started(one: Service, kind: str, seed: int) -> tuple[dict[str, str], StepReply]:
    """With as many players as it takes; alone at last: some games of several say late that one is too few."""
    why = ""
    for players in (*range(2, MAX_PLAYERS + 1), 1) if kind.startswith("textarena:") else (1,):
        custom = {"players": players} if kind.startswith("textarena:") else None
        answer = one.http.post("/start_sample", json={"name": kind, "index": seed, "custom_task": custom})
        if answer.status_code == httpx.codes.OK and answer.json().get(FINAL):
            raise EnvironmentFailed(f"status 'task error': {_detail(answer)}")
        if answer.status_code == httpx.codes.OK:
            return {"session_id": answer.headers["session_id"]}, step_of(answer.json(), kind)
        why = _detail(answer)
        if answer.status_code != httpx.codes.UNPROCESSABLE_ENTITY:
            raise EnvironmentFailed(why)
    raise Unplayable(why)


def _said(one: Service, session: dict[str, str], reply: dict[str, Any]) -> StepReply:
    answer = one.http.post("/interact", json={"messages": [reply]}, headers=session)
    if answer.status_code != httpx.codes.OK:
        raise EnvironmentFailed(_detail(answer))
    return step_of(answer.json(), one.url)


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError):
        return answer.text[:300]


def _reply(drawn: random.Random, shown: Sequence[str], step: StepReply, seed: int) -> dict[str, Any]:
    """Mostly a move; episode 0 has none but moves, later ones also what weak models say."""
    if step.tools and drawn.random() < 0.8:
        function = drawn.choice(list(step.tools))["function"]
        fields = (function.get("parameters") or {}).get("properties") or {}
        values = {name: drawn.choice([[str(seed)], "1", 1, None, "ls; SELECT 1"]) for name in fields}
        called = {"name": function["name"], "arguments": json.dumps(values)}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": called}],
        }
    if seed and drawn.random() < 0.4:
        return {"role": "assistant", "content": drawn.choice(WEAK)}
    number = drawn.randrange(9)
    moves = [f"[{number}]", f"[{number} {drawn.randrange(9)}]", f"{number}", *shown, *shown]
    return {"role": "assistant", "content": drawn.choice(moves)}


@contextmanager
def served(python: str | None, kinds: Sequence[str]) -> Iterator[Service]:
    flags = ["--workers", "2", "--step_s", "30", "--start_s", "60", "--environments", ",".join(kinds)]
    with service(*flags, *(["--worker_python", python] if python else [])) as one:
        yield one


def play_agentrl(python: str, num_episodes: int) -> Row:
    row = Row("agentrl-worker")
    command = [python, "-m", "tests.sampler.environments.agentrl_controller"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    one = Service(process, int(process.stdout.readline()))
    try:
        play(one, row, "calculator", num_episodes)
    finally:
        one.http.close()
        process.kill()
        process.wait()
        process.stdout.close()
    return row


def play_openenv(python: str, num_episodes: int) -> Row:
    row = Row("openenv")
    with counting(2, python) as one:
        play(one, row, "count", num_episodes)
    return row


def tour(python: str | None, package: str, kinds: Sequence[str], num_episodes: int) -> Row:
    row = Row(package)
    with served(python, kinds) as one:
        for kind in kinds:
            play(one, row, kind, num_episodes)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for part in ("games", "agentrl", "openenv", "mariadb"):
        parser.add_argument(f"--{part}", help="a Python that has it")
    parser.add_argument("--episodes", type=int, default=NUM_EPISODES, help="of each environment")
    parser.add_argument("--only", default="", help="environments whose name contains this")
    asked = parser.parse_args()
    parts: list[tuple[str | None, str, list[str]]] = []
    if asked.games:
        done = subprocess.run([asked.games, "-W", "ignore", "-c", LISTED], capture_output=True, text=True, check=True)
        listed, versions = json.loads(done.stdout.splitlines()[-1])
        parts += [
            (asked.games, f"{package} {versions[package]}", [f"{package}:{name}" for name in names])
            for package, names in listed.items()
        ]
    splits = ("train", "heldout")
    parts.append(
        (None, "the bundled worlds", [f"{world}:{split}" for world in ("database", "shell") for split in splits])
    )
    if asked.mariadb:
        parts.append((asked.mariadb, "MariaDB", [f"mariadb:{split}" for split in splits]))
    rows = []
    for python, package, kinds in parts:
        if chosen := [kind for kind in kinds if asked.only in kind]:
            rows.append(tour(python, package, chosen, asked.episodes))
            _tell(rows[-1])
    for part, played in (("agentrl", play_agentrl), ("openenv", play_openenv)):
        if other := getattr(asked, part):
            rows.append(played(other, 10 * asked.episodes))
            _tell(rows[-1])
    print(
        "\n| package | tried | played | refused | episodes | failures: ours | theirs |\n|---|---|---|---|---|---|---|"
    )
    for row in rows:
        print(row.line())


def _tell(row: Row) -> None:
    print(f"\n{row.package}: {dict(row.ends)}", flush=True)
    for title, found in (("refused", row.refused), ("OURS", row.ours), ("theirs", row.theirs)):
        for why, names in found.items():
            listed = ", ".join(sorted(set(names))[:6])
            print(f"  {title} {len(names)}: {why[:300]}  <- {listed}", flush=True)


if __name__ == "__main__":
    main()
