"""`tandem feedback`: one score, many from a file, and the list of what waits."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest

from shared.documents.states import RecordStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.audit.run import audit
from tests.shared.builders import claim, import_tasks
from tests.shared.episodes import play_and_wait
from tests.tandem.commands.commands import Command

RUN = "asked"
RECORDS = [f"main:train:0:t{k}:0:1" for k in range(3)]


@pytest.fixture
def asked(mongod: Mongod) -> Iterator[str]:
    """Three episodes that wait, each a group; of the first the deadline is the last."""

    async def play() -> None:
        async with Store.open(mongod.connection_string, RUN) as store:
            await import_tasks(store, 3, num_generations=1)
            for days, without in ((3, 0.5), (2, None), (1, None)):
                await play_and_wait(store, await claim(store), without, days * 86_400)

    asyncio.run(play())
    yield RUN
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database(RUN)


def scores(mongod: Mongod) -> list[float | None]:
    async def ask() -> list[float | None]:
        async with Store.open(mongod.connection_string, RUN) as store:
            report = await audit(store)
            assert report.ok, report
            found = [await store.records.get(record) for record in RECORDS]
            assert all(r and (r.status is RecordStatus.SCORED) == (r.score is not None) for r in found)
            return [record.score for record in found if record is not None]

    return asyncio.run(ask())


def test_a_score_is_given_and_what_still_waits_is_listed(tandem: Command, asked: str, mongod: Mongod) -> None:
    listed = tandem("feedback", asked, "--list")
    assert listed.exit_code == 0, listed.output
    assert re.findall(r"main:train:\S+", listed.stdout) == RECORDS[::-1]
    assert "set aside" in listed.stdout
    assert re.findall(r"(\d+ (?:d|h)) .*│ (\S+)", listed.stdout) == [("24 h", "set"), ("48 h", "set"), ("3 d", "0.5")]
    part = tandem("feedback", asked, RECORDS[0], "0.25", "--turn", "1", "--comment", "good so far")
    assert part.stdout == f"{RECORDS[0]}: score 0.25 of turn 1; 1 of 1 episodes of its group are left\n"
    done = tandem("feedback", asked, RECORDS[0], "--comment", "solved [it]", "--source", "ann", "--", "-1")
    assert (done.exit_code, done.stdout) == (0, f"{RECORDS[0]}: score -1; its group is complete\n"), done.output
    again = tandem("feedback", asked, RECORDS[0], "--", "-1")
    assert again.stdout == f"{RECORDS[0]}: score -1 (given before); its group is complete\n"
    other = tandem("feedback", asked, RECORDS[0], "1")
    assert other.exit_code == 2
    assert "has score -1, given at" in other.stderr
    assert "by ann" in other.stderr
    assert scores(mongod) == [-1.0, None, None]
    lines = [json.loads(line) for line in tandem("feedback", asked, "--list", "--json").stdout.splitlines()]
    assert [(line["record"], line["score_without"]) for line in lines] == [(RECORDS[2], None), (RECORDS[1], None)]


def test_show_and_status_tell_of_the_wait_and_of_the_feedback(tandem: Command, asked: str) -> None:
    shown = tandem("show", asked, RECORDS[0]).stdout
    assert re.search(r"waits\s+for feedback until \d{4}-\d\d-\d\d", shown)
    assert re.search(r"without\s+feedback the score is 0\.5", shown)
    status = tandem("status", asked).stdout
    assert re.search(rf"the first deadline for feedback is in 24 h: {RECORDS[2]}", status)
    assert json.loads(tandem("status", asked, "--json").stdout)["slots"]["train"]["waiting"] == 3
    assert tandem("feedback", asked, RECORDS[0], "1", "--comment", "solved [it]").exit_code == 0
    shown = tandem("show", asked, RECORDS[0]).stdout
    assert "waits" not in shown
    assert "'comment': 'solved [it]'" in shown


def test_a_file_gives_many_and_says_of_each_line_that_is_refused_why(
    tandem: Command, asked: str, mongod: Mongod, tmp_path: Path
) -> None:
    lines = [
        {"record": RECORDS[0], "score": 1, "comment": "yes"},
        {"record": "main:train:0:t7:0:1", "score": 1},
        {"record": RECORDS[1], "score": "high"},
        {"record": RECORDS[2], "score": 0.5, "source": "ann"},
        {"record": RECORDS[2], "score": 0.5},
    ]
    file = tmp_path / "feedback.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    done = tandem("feedback", asked, "--file", str(file), "--json")
    assert done.exit_code == 1
    taken = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(t["record"], t["again"]) for t in taken] == [(RECORDS[0], False), (RECORDS[2], False), (RECORDS[2], True)]
    assert (
        f"{file}:2: run asked: no record is called 'main:train:0:t7:0:1'; `tandem feedback asked --list`" in done.stderr
    )
    assert f"{file}:3: feedback for {RECORDS[1]}: score is 'high'" in done.stderr
    assert "2 of 5 were refused; the others are stored" in done.stderr
    assert scores(mongod) == [1.0, None, 0.5]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"record": "a"}', "expected {"),
        ("[]", "expected {"),
        ('{"record": "a", "score": 1, "rating": 2}', '"rating" is unknown; expected record, score'),
        ('{"record": "a", "score": 1, "score": 2}', "given again"),
        ('{"record": "a", "score": 1', "expected {"),
        ("", "no feedback in it"),
    ],
)
def test_a_wrong_line_is_refused_before_anything_is_given(
    tandem: Command, asked: str, mongod: Mongod, tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "feedback.jsonl"
    good = json.dumps({"record": RECORDS[0], "score": 1}) + "\n"
    file.write_text(good + line if line else "\n")
    done = tandem("feedback", asked, "--file", str(file))
    assert done.exit_code == 2
    assert words in done.stderr
    assert scores(mongod) == [None, None, None]


@pytest.mark.parametrize(
    "arguments",
    [[], [RECORDS[0]], [RECORDS[0], "1", "--list"], ["--list", "--file", "x"], ["--list", "--comment", "x"]],
    ids=" ".join,
)
def test_one_thing_is_asked_at_a_time(tandem: Command, asked: str, arguments: list[str]) -> None:
    done = tandem("feedback", asked, *arguments)
    assert done.exit_code == 2
    assert "expected RUN RECORD SCORE, or RUN --file FILE, or RUN --list" in done.stderr


@pytest.mark.parametrize(
    ("score", "words"), [("nan", "score is nan"), ("inf", "score is inf"), ("high", "Usage: tandem")]
)
def test_a_score_is_a_finite_number(tandem: Command, asked: str, mongod: Mongod, score: str, words: str) -> None:
    done = tandem("feedback", asked, RECORDS[0], score)
    assert done.exit_code == 2
    assert words in done.stderr
    assert scores(mongod) == [None, None, None]
