"""On a terminal of 80 columns every id can be copied, and nothing that a model or a tool wrote steers it."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pymongo
import pytest
from rich.console import Console
from rich.text import Text

from shared.documents.run import Worker
from shared.outside_console import OutsideConsole
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.conftest import ROOT
from tests.shared.builders import claim, make_task
from tests.shared.episodes import play, settle, train

RUN = "narrow"
TID = "a-long-id-of-a-question/of-a-data-set_with.many:parts/" + "0123456789" * 9
RECORD = f"main:train:0:{TID}:1:1"
WORKER = f"sampler:{'node' * 12}.example.org:4711"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe :train: [red]not red[/red] C:\\"
SEEN = "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202egnp.exe :train: [red]not red[/red] C:\\"


@pytest.fixture(scope="module")
def uri(mongod: Mongod) -> Iterator[str]:
    async def fill() -> None:
        async with Store.open(mongod.connection_string, RUN) as store:
            task = make_task(0, tid=TID)
            query = task.payload.model_copy(update={"query": HOSTILE})
            await store.tasks.insert_new([task.model_copy(update={"payload": query})])
            while (held := await claim(store)) is not None:
                await play(store, held, float(held.traj_id))
            await settle(store)
            await train(store, 1)
            heard = {"kind": "sampler", "host": "node" * 12 + ".example.org", "pid": 4711, "heartbeat_s": 3600.0}
            await store.workers.heartbeat(Worker(id=WORKER, doing=HOSTILE, **heard))
            await store.database["records"].update_many({}, {"$set": {"worker": WORKER, "answer": HOSTILE}})
            turns = store.database["dispatched_sampling_tasks"]
            await turns.update_many({"turn": 0}, {"$set": {"tool_calls.0.result": HOSTILE, "error": HOSTILE}})

    asyncio.run(fill())
    yield mongod.connection_string
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database(RUN)


def on_a_terminal(uri: str, *arguments: str) -> str:
    """What a terminal of 80 columns receives."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    hidden = {"DB_CONNECTION_STRING", "COLUMNS", "NO_COLOR", "FORCE_COLOR"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"DB_CONNECTION_STRING": uri, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tandem", *arguments]
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    received = b""
    while True:
        try:
            part = os.read(master, 65_536)
        except OSError:  # Linux: the last one that wrote has closed it
            break
        if not part:
            break
        received += part
    os.close(master)
    assert child.wait(60) == 0, received.decode()
    return received.decode()


STYLES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (("show", RUN), [RECORD]),
        (("show", RUN, RECORD), [RECORD, f"main:train:0:{TID}", WORKER]),
        (("show", RUN, TID), [RECORD, f"main:train:0:{TID}"]),
        (("trace", RUN, "--step", "1"), [RECORD]),
        (("status", RUN), [WORKER.removeprefix("sampler:")]),
        (("tail", RUN, "--no-follow"), [RECORD, f"main:train:0:{TID}", "main:1:1"]),
        (("runs",), [RUN]),
    ],
)
def test_ids_are_whole_on_80_columns_and_nothing_from_outside_steers_the_terminal(
    uri: str, arguments: tuple[str, ...], ids: list[str]
) -> None:
    text = on_a_terminal(uri, *arguments)
    plain = STYLES.sub("", text).replace("\r\n", "\n")
    assert [name for name in ids if name not in plain] == []
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", plain), "only styles of our own"
    assert not re.search(r"[\U0001f000-\U0001ffff]", plain)


def test_what_a_model_wrote_is_printed_as_it_is(uri: str) -> None:
    plain = STYLES.sub("", on_a_terminal(uri, "show", RUN, RECORD)).replace("\r\n", "\n")
    for label in ("query", "answer", "result", "error"):
        (line,) = [line for line in plain.splitlines() if line.startswith(label)][:1]
        told = " ".join(plain[plain.index(line) :].split("\n" + " " * 12)[:2])
        assert " ".join(told.split())[len(label) :].strip().startswith(" ".join(SEEN.split())[:60]), label


def test_a_segment_of_any_renderable_is_made_visible() -> None:
    out = OutsideConsole(width=80, force_terminal=True, record=True)
    assert isinstance(out, Console)
    with out.capture() as captured:
        out.print(Text("a\x1b[2Jb\x9bc\u202ed\U000e0041"))
    assert captured.get() == "a\\x1b[2Jb\\x9bc\\u202ed\\U000e0041\n"
