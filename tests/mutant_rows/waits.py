"""What a process says of its waits."""

from tests.mutant_rows.mutant import Mutant

HEARTBEATS, IDLE = "tests/shared/test_heartbeats.py", "tests/sampler/test_idle_views.py"

MUTANTS = (
    Mutant(
        "shares: attempts of agents elsewhere count like episodes",
        "sampler/gateway/service.py",
        "            self._shares.scored(played, record.score)\n",
        "",
        "tests/sampler/test_score_shares.py::test_attempts_of_agents_elsewhere_are_counted_like_episodes",
    ),
    Mutant(
        "shares: an end that is sent again is no second episode",
        "sampler/gateway/service.py",
        "        played, attempt.played = attempt.played, None\n        if played is None:",
        "        played = attempt._sampler\n        if played is None and record.score is None:",
        "tests/sampler/test_score_shares.py::test_attempts_of_agents_elsewhere_are_counted_like_episodes",
    ),
    Mutant(
        "waits: a keeper says that it drains",
        "sampler/engine/keeper/update.py",
        "    with waiting(Wait(what, ",
        "    with nothing(Wait(what, ",
        "tests/test_waits.py::test_every_wait_has_an_owner_a_reason_and_an_end",
    ),
    Mutant(
        "waits: a trainer that loads says whose device it waits for",
        "trainer/run/status.py",
        "        return self._is_announced or self.activity.wait is not None\n",
        "        return self._is_announced\n",
        "tests/trainer/test_shared_device.py::test_a_trainer_says_whose_device_it_waits_for_also_before_it_has_begun",
    ),
    Mutant(
        "waits: a trainer that is refused at its start leaves no trace",
        "trainer/run/status.py",
        "        return self._is_announced or self.activity.wait is not None\n",
        "        return True\n",
        "tests/trainer/test_shared_device.py::test_a_trainer_says_whose_device_it_waits_for_also_before_it_has_begun",
    ),
    Mutant(
        "waits: a part's wait is told with the work",
        "shared/processes/waits.py",
        "        if not inside:\n",
        "        if True:\n",
        "tests/shared/test_activity.py::test_a_long_wait_of_a_part_is_shown_with_the_work",
    ),
    Mutant(
        "waits: a gateway says that no agent came",
        "sampler/core/service/idle.py",
        "    if busy or view.doing not in SAMPLING:\n",
        "    if True:\n",
        "tests/sampler/gateway/test_external_places.py::test_a_gateway_says_that_it_waits_for_agents_or_for_their_requests",
    ),
    Mutant(
        "heartbeats: the seconds of a wait alone are not written",
        "shared/store/heartbeats.py",
        "    stats = {name: value for name, value in worker.stats.items() if name != WAITED}\n",
        "    stats = worker.stats\n",
        f"{HEARTBEATS}::test_the_seconds_of_a_wait_alone_are_not_written",
    ),
    Mutant(
        "heartbeats: a change is written at once",
        "shared/store/heartbeats.py",
        "content != self._content or ",
        "",
        f"{HEARTBEATS}::test_a_change_is_written_at_once",
    ),
    Mutant(
        "heartbeats: a process that works writes every one",
        "shared/store/heartbeats.py",
        "UNCHANGED_S if worker.stats.get(WAITED) else 0.0",
        "UNCHANGED_S",
        f"{HEARTBEATS}::test_a_process_that_works_is_written_every_time",
    ),
    Mutant(
        "a paused trainer asks for nothing but the pause",
        "trainer/data/stream.py",
        "            if self.paused:\n",
        "            if False:\n",
        "tests/trainer/test_stream.py::test_a_paused_trainer_asks_for_nothing_but_the_pause",
    ),
    Mutant(
        "a trainer without tasks asks again when its patience ends, not every second",
        "trainer/data/supply.py",
        "self._used_up_since + limit_s - time.monotonic()",
        "0.0",
        "tests/trainer/test_supply.py::test_a_trainer_without_tasks_asks_again_when_its_patience_ends",
    ),
    Mutant(
        "a sampler of a paused run reads the run alone",
        "sampler/core/service/database_view.py",
        "        if paused and self.state.paused and not playing:\n",
        "        if False:\n",
        f"{IDLE}::test_a_sampler_of_a_paused_run_reads_its_document_alone",
    ),
    Mutant(
        "what the tasks wait for is read once after a refresh",
        "sampler/core/service/database_view.py",
        "        if self._outlook is None:\n",
        "        if True:\n",
        f"{IDLE}::test_what_the_tasks_wait_for_is_read_once_after_a_refresh",
    ),
)
