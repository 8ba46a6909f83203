"""What a process says of its waits."""

from tests.mutant_rows.mutant import Mutant

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
)
