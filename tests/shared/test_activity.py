"""What a process says that it does: its work, or its wait, and the waits of its parts."""

import contextvars
import threading

import pytest

from shared.processes.waits import Activity, Wait, waiting

DRAIN = Wait("requests in flight", "3 are running", "all have ended")
ROOM = Wait("room in environment lake", "all sessions are in use", "one ends")


def test_a_wait_takes_the_place_of_the_work_until_it_ends() -> None:
    activity = Activity("http://e UP version 3")
    with activity.of_process(), waiting(DRAIN) as wait:
        wait.since -= 65
        assert str(activity) == "waits 1:05 for requests in flight: 3 are running; until all have ended"
        assert activity.waited_s == pytest.approx(65, abs=30)
        wait.set(Wait("requests in flight", "1 is running", "all have ended"))
        assert "1 is running" in str(activity)
        assert activity.waited_s >= 65
    assert (str(activity), activity.waited_s) == ("http://e UP version 3", 0.0)


def test_a_long_wait_of_a_part_is_shown_with_the_work() -> None:
    activity = Activity("sampling")
    with activity.of_process(), waiting(ROOM, inside=True) as first, waiting(ROOM, inside=True) as second:
        assert str(activity) == "sampling"
        first.since -= 60
        second.since -= 30
        room = "waits 1:00 for room in environment lake: all sessions are in use; until one ends"
        assert str(activity) == f"sampling; 2 waits inside, the longest {room}"
        assert activity.waited_s == 0.0


def test_a_wait_that_raises_is_over_and_one_outside_of_a_process_is_told_nowhere() -> None:
    activity = Activity("sampling")
    with pytest.raises(TimeoutError), activity.of_process(), waiting(DRAIN):
        raise TimeoutError
    with waiting(DRAIN):
        assert str(activity) == "sampling"


def test_threads_and_tasks_that_begin_in_a_process_wait_for_it() -> None:
    activity, seen = Activity("step 1"), list[str]()

    def work() -> None:
        with waiting(DRAIN):
            seen.append(str(activity))

    with activity.of_process():
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    thread.join()
    assert seen == ["waits 0:00 for requests in flight: 3 are running; until all have ended"]
