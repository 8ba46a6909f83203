"""Protections of the trainer's checkpoints and published weights."""

from tests.mutant_rows.mutant import Mutant

LATE = "tests/trainer/test_late_publisher.py"
DURABLE = "tests/trainer/test_durability.py"

SHARED_DEVICE = "tests/trainer/test_shared_device.py"

MUTANTS = (
    Mutant(
        "start of the publisher: the number in what it announces",
        "trainer/publishing/publish.py",
        "                trainer_generation=self._trainer_generation,\n",
        "",
        f"{LATE}::test_a_publisher_that_was_replaced_announces_nothing_and_deletes_nothing",
    ),
    Mutant(
        "start of the publisher: the fence",
        "trainer/publishing/publish.py",
        "            self._bridge(self._store.versions.fence(policy, trainer_generation, step))\n",
        "",
        f"{LATE}::test_a_publisher_that_was_replaced_announces_nothing_and_deletes_nothing",
    ),
    Mutant(
        "pruning spares what is evaluated",
        "trainer/publishing/publish.py",
        "[*last, *(v for v in surviving if v.version in {*awaited, *pinned} and v not in last)]",
        "[*last]",
        "tests/trainer/test_pruning.py::test_pruning_spares_a_version_until_the_last_task_of_its_round_is_settled",
    ),
    Mutant(
        "flush of what is published: the contents",
        "trainer/checkpoints/atomic_directories.py",
        "        _fsync(path)\n",
        "        pass\n",
        f"{DURABLE}::test_a_version_is_flushed_whole_before_it_is_announced",
    ),
    Mutant(
        "flush of what is published: the name",
        "trainer/checkpoints/atomic_directories.py",
        "    _fsync(target.parent)\n",
        "",
        f"{DURABLE}::test_a_version_is_flushed_whole_before_it_is_announced",
    ),
    Mutant(
        "weights that an engine requested are gathered with the device held",
        "trainer/publishing/publish.py",
        'publishing step=%d again, complete", step)\n            with self._device.held(self._learner):',
        'publishing step=%d again, complete", step)\n            if True:',
        f"{SHARED_DEVICE}::test_weights_are_published_between_steps_only_after_the_engine_sleeps",
    ),
    Mutant(
        "ranks agree on whether the device is shared",
        "trainer/shared_device.py",
        "self._device = _agreed(parallel.everyone.gather_objects((socket.gethostname(), settings.shared_device)))",
        "self._device = settings.shared_device",
        f"{SHARED_DEVICE}::test_all_ranks_take_turns_if_the_machine_of_one_shares_its_gpus",
    ),
)
