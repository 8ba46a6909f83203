"""The shell's tasks in a real sandbox: solvable, scored by answer or check, and bounded for any script."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sampler.environments.adapters import shell_tasks
from shared.sandbox.levels import chosen_level
from tests.sampler.environments.acting import bash, call, solved_shell
from tests.sampler.environments.services import Service, service

KINDS = "train=shell:train,heldout=shell:heldout"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    _ = chosen_level(None)
    folder = tmp_path_factory.mktemp("temporary")
    for one in (folder, *folder.parents[:3]):
        one.chmod(0o711)  # a session's user passes through it
    with service("--workers", "1", "--step_s", "30", "--environments", KINDS, TMPDIR=str(folder)) as found:
        found.folder = folder  # type: ignore[attr-defined] # of this module's tests
        yield found


def own(**task: Any) -> dict[str, Any]:
    return {"question": "?", **task}


def test_each_generated_task_can_be_solved_by_commands(shell: Service) -> None:
    for kind in shell_tasks.SPLITS:
        ends = [solved_shell(shell, kind, index) for index in range(14)]
        assert [end["reward"] for end in ends] == [1.0] * 14, [end["result"] for end in ends if end["reward"] != 1.0]


def test_no_question_of_a_held_out_task_is_asked_in_training() -> None:
    asked = shell_tasks.QUESTIONS
    assert set(asked["train"]).isdisjoint(asked["heldout"])
    assert shell_tasks.task_of("train", 5) == shell_tasks.task_of("train", 5)


def test_a_check_decides_by_what_was_done_and_nothing_done_is_no_success(shell: Service) -> None:
    task = own(files={"a.txt": "one\n", "in/b.txt": "two\n"}, check="test -f c.txt && test ! -e a.txt")
    for scripts, reward in (([], 0.0), (["cp a.txt c.txt"], 0.0), (["cat a.txt in/b.txt > c.txt", "rm a.txt"], 1.0)):
        session, _ = shell.start("train", 0, **task)
        for script in scripts:
            bash(shell, session, script)
        end = call(shell, session, ("finish_action", {"thought": "done"}))
        assert (end["status"], end["reward"]) == ("completed", reward), scripts


def test_files_stay_from_turn_to_turn_and_processes_do_not(shell: Service) -> None:
    session, _ = shell.start("train", 0, **own(answer=["1"], setup="echo made > before.txt"))
    assert bash(shell, session, "cat before.txt") == "made\n\n[exit status 0]"
    assert bash(shell, session, "echo $$ > pid; setsid sleep 987654 & echo on") == "on\n\n[exit status 0]"
    assert "987654" not in bash(shell, session, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").replace("/proc", "")
    assert not any(b"987654" in path.read_bytes() for path in _command_lines()), "not outside of the sandbox either"


def _command_lines() -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]


def test_sessions_see_neither_each_other_nor_the_machine(shell: Service) -> None:
    first, _ = shell.start("train", 0, **own(answer=["1"], files={"mine.txt": "secret\n"}))
    other, _ = shell.start("train", 0, **own(answer=["1"]))
    (mine,) = [line for line in bash(shell, first, "pwd").splitlines() if line.startswith("/")]
    assert "secret" in bash(shell, first, f"cat {mine}/mine.txt")
    assert "secret" not in bash(shell, other, f"cat {mine}/mine.txt; cat ../*/mine.txt")
    assert "root:" not in bash(shell, other, "cat /etc/shadow /proc/1/environ; ln -s /etc/shadow s; cat s")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("while true; do :; done", "[ended: "),
        (":(){ :|:& };: ; sleep 1", "["),
        ("yes", "[ended: output_mb: more than 4 MB"),
        ("sleep 1000", "[ended: lifetime_s"),
        ("cat /dev/zero > big", "[ended: file_mb"),
        ("python3 -c 'x = bytearray(10**10)'", "MemoryError"),
        ("kill -9 -1; exit 3", "[exit status 3]"),
        ("cat", "[exit status 0]"),
        ("echo 'unfinished", "[exit status 2]"),
        ("exec >&- 2>&-; sleep 0.1", "[exit status 0]"),
        ("chmod 000 .; exit 4", "[exit status 4]"),
        ("x" * 30_000, "The script has 30000 characters"),
        ("echo '\0'", "no NUL"),
    ],
)
def test_no_script_does_more_than_it_may_and_the_session_goes_on(shell: Service, script: str, told: str) -> None:
    session, _ = shell.start("train", 0, **own(answer=["done"]))
    begun = time.monotonic()
    found = bash(shell, session, script)
    assert told in found, found
    assert (len(found) < 10_000, time.monotonic() - begun < 30) == (True, True), "less than step_s: no worker is lost"
    bash(shell, session, "chmod 700 . ; echo still here")
    assert call(shell, session, ("answer_action", {"answer": "done"}))["reward"] == 1.0
    assert "workers_lost" not in shell.health()["counts"]


def test_ended_sessions_leave_no_folder(shell: Service) -> None:
    session, _ = shell.start("train", 0)
    before = _folders(shell)
    assert shell.http.post("/cancel", headers=session).status_code == 200
    end = time.monotonic() + 60
    while len(_folders(shell)) != len(before) - 1:
        assert time.monotonic() < end
        time.sleep(0.05)  # another process


def _folders(shell: Service) -> list[Path]:
    return [path for path in shell.folder.glob("tandem-*/shells/0/*") if path.is_dir()]  # type: ignore[attr-defined] # see above


def test_a_task_that_is_none_is_refused(shell: Service) -> None:
    for task in (
        own(),
        own(answer=["1"], check="true"),
        own(answer=["1"], setup="exit 3"),
        own(answer=["1"], files={"../x": ""}),
    ):
        answer = shell.http.post("/start_sample", json={"name": "train", "index": 0, "custom_task": task})
        assert answer.status_code == 422, (task, answer.text)
