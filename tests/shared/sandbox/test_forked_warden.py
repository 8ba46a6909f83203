"""A server that has tools loaded forks a warden, which runs a function of it confined."""

import asyncio
import json
import os
import signal
import sys

import pytest

from shared.sandbox.confinement import Confinement
from shared.sandbox.folders import own
from shared.sandbox.warden import Specification, keep_watch
from shared.sandbox.watch import Bounds
from tests.shared.sandbox.starting import session_folder


def _attempts(answer: int) -> dict[str, str]:
    found = {"user": str(os.getuid()), "folder": os.getcwd()}
    for name, path, flags in (("write", "/tmp/escape", os.O_CREAT | os.O_WRONLY), ("read", "/etc/passwd", os.O_RDONLY)):
        try:
            os.close(os.open(path, flags))
            found[name] = "reached"
        except OSError:
            found[name] = "met"
    found["open"] = ",".join(str(number) for number in range(3, 64) if _is_open(number))
    os.write(answer, json.dumps(found).encode())
    return found


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="forks a subreaper")
async def test_a_forked_warden_confines_a_function_and_closes_descriptors() -> None:
    async with session_folder() as folder:
        user = own(folder)
        confinement = Confinement(str(folder), [], False, user, 10, 512, 16, 64, 8, [], True)
        what = Specification(str(folder), Bounds(10, 512, 16, 16, 60), [], confinement, [])
        wardens_end, lifeline = os.pipe()
        report, wardens_report = os.pipe()
        answer, its_answer = os.pipe()
        forked = os.fork()
        if forked == 0:
            try:
                signal.set_wakeup_fd(-1)
                os.close(lifeline)
                os.dup2(its_answer, 1)
                keep_watch(wardens_end, wardens_report, what, lambda: bool(_attempts(1)) and None)
            finally:
                os._exit(99)
        for number in (wardens_end, wardens_report, its_answer):
            os.close(number)
        text = b""
        while piece := os.read(answer, 4096):
            text += piece
        await asyncio.to_thread(os.waitpid, forked, 0)
        for number in (lifeline, report, answer):
            os.close(number)
        found = json.loads(text)
        assert found["folder"] == str(folder)
        assert found["open"] == "", "the gateway's descriptors"
        assert user is None or found["user"] == str(user)
        assert user is None or found["write"] == "met"
