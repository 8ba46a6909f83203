"""Environments of the tests, which a real service plays in its workers."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sampler.environments import Environment, Step, TaskRefused
from sampler.environments.environment import COMPLETED, MAX_LINE_BYTES, Index, Message, reply_text, user_says


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


class Guess(Environment):
    """A digit. `die`, `hang`, `raise` are what a broken world does. `folder`: one file for each open session."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        print("what a world prints is not the worker's answer")
        if int(index) < 0:
            raise TaskRefused(f"index is {index}; expected a number from 0 on")
        if task.get("start") == "raise":
            raise RuntimeError("no disk")
        time.sleep(float(task.get("start_s", 0)))  # a slow start
        self.digit = str(int(index) % 10)
        self.file = Path(task["folder"]) / f"{os.getpid()}-{id(self)}" if "folder" in task else None
        if self.file is not None:
            self.file.touch()
        return Step(user_says("A digit?"))

    def interact(self, replies: Sequence[Message]) -> Step:
        said = reply_text(replies).strip()
        if said == "die":
            os._exit(3)
        if said == "hang":
            time.sleep(1000)  # longer than step_s
        if said == "raise":
            raise RuntimeError("the world is broken")
        if said == "exit":
            sys.exit("the world exits")
        if said == "long":
            return Step(user_says("x" * MAX_LINE_BYTES))
        if said.startswith("child "):  # in a session of its own, as a database server begins
            command = [sys.executable, "-c", "import time; time.sleep(1000)"]
            child = subprocess.Popen(command, start_new_session=said == "child apart")
            return Step(user_says(str(child.pid)))
        time.sleep(float(said.removeprefix("sleep ")) if said.startswith("sleep ") else 0)
        if said == self.digit:
            return Step(status=COMPLETED, reward=1.0, metrics={"tries": 1}, result={"digit": self.digit})
        return Step(user_says(f"not {said}"), reward=-0.25)

    def close(self) -> None:
        if self.file is not None:
            self.file.unlink(missing_ok=True)


class Changing(Environment):
    """By turns: tools A; other tools B; a whole history (a restart); the end. It keeps the replies as it was sent them."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        self.history: list[Message] = [
            {"role": "system", "content": "You play."},
            {"role": "user", "content": "Begin."},
        ]
        self.turn = 0
        return Step(list(self.history), tools=[tool("look")])

    def interact(self, replies: Sequence[Message]) -> Step:
        self.turn += 1
        new = {"role": "user", "content": f"turn {self.turn}"}
        self.history += [*replies, new]
        if self.turn == 1:
            return Step([new], tools=[tool("look")], reward=0.0)
        if self.turn == 2:
            return Step([new], tools=[tool("look"), tool("open")], reward=0.5)
        if self.turn == 3:
            return Step([self.history[0], *self.history[3:]], reward=0.0)
        return Step(status=COMPLETED, reward=0.25, metrics={"score": 0.9, "steps": self.turn})


class Called(Environment):
    """One tool, whose result is the world's next message."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        return Step(user_says("Use the tool."), tools=[tool("look")])

    def interact(self, replies: Sequence[Message]) -> Step:
        calls = replies[-1].get("tool_calls") or ()
        if not calls:
            return Step(status=COMPLETED, reward=1.0)
        (call,) = calls
        return Step([{"role": "tool", "tool_call_id": call["id"], "content": f"seen {call['function']['arguments']}"}])


class Unfinished(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        return Step(user_says("2+2?"))


class Silent(Environment):
    """It ends without a reward or a score."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        return Step(user_says("2+2?"))

    def interact(self, replies: Sequence[Message]) -> Step:
        return Step(status=COMPLETED)


class Forgetful(Environment):
    """Its second step is a restart with the whole history; `echo` to it is answered with the reply itself."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        self.history: list[Message] = [{"role": "system", "content": "You play."}, *user_says("Begin.")]
        return Step(list(self.history))

    def interact(self, replies: Sequence[Message]) -> Step:
        self.history += [*replies, *user_says(f"turn {len(self.history)}")]
        if reply_text(replies) == "echo":
            return Step(list(self.history[-2:]))
        if len(self.history) == 6:
            return Step(list(self.history))
        if len(self.history) > 6:
            return Step(status=COMPLETED, metrics={f"m{k}": 1 for k in range(300)} | {"m" * 101: 1, "score": 1})
        return Step(self.history[-1:])


class Careless(Environment):
    """Its steps are none, of the kind that the reply, or `start`, names."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        if task.get("start") == "raise":
            raise RuntimeError("no disk")
        if task.get("start") == "ended":
            return Step(status=COMPLETED, reward=1.0)
        return {"messages": []} if task.get("start") == "wrong" else Step(user_says("Go on."))  # type: ignore[return-value]  # wrong on purpose

    def interact(self, replies: Sequence[Message]) -> Step:
        said = reply_text(replies).strip()
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        wrong: dict[str, Any] = {
            "dict": {"messages": user_says("a"), "status": "running"},
            "status": Step(user_says("a"), status="won"),
            "nan": Step(user_says("a"), reward=float("nan")),
            "image": Step([{"role": "user", "content": [image]}]),
        }
        return wrong[said]  # type: ignore[no-any-return]  # of a type that is not known


class Unmade(Environment):
    def __init__(self, name: str) -> None:
        raise AssertionError("no world of this kind")

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        raise NotImplementedError  # never called: none of its kind is made

    def interact(self, replies: Sequence[Message]) -> Step:
        raise NotImplementedError  # never called: none of its kind is made


class Exact(Environment):
    """It wants a line that begins with blanks."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        return Step(user_says("Code?"))

    def interact(self, replies: Sequence[Message]) -> Step:
        said = reply_text(replies)
        return Step(status=COMPLETED, reward=float(said == "    return x"), result=said)


class Hashed(Environment):
    """It shows what the order of its sets depends on."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        return Step(user_says(str(hash("a text"))))

    def interact(self, replies: Sequence[Message]) -> Step:
        return Step(status=COMPLETED, reward=1.0)
