"""What the simulator of the order of episodes counts and bounds."""

from tests.mutant_rows.mutant import Mutant

SIMULATOR = "tests/sampler/test_schedule_simulator.py"

MUTANTS = (
    Mutant(
        "simulated: the gate waits for engines where no token may be old",
        "scripts/bench/scheduling/simulator.py",
        "loaded if run.max_staleness == 0 else self._step",
        "self._step",
        f"{SIMULATOR}::test_the_gate_bounds_the_staleness",
    ),
    Mutant(
        "simulated: what a cancelled episode had sampled is counted",
        "scripts/bench/scheduling/simulator.py",
        "            play.engine.cancel(play.request)\n        self._count(play)\n        self._free",
        "            play.engine.cancel(play.request)\n        self._free",
        f"{SIMULATOR}::test_no_token_is_lost_or_counted_twice",
    ),
    Mutant(
        "simulated: a request waits for room in the KV cache",
        "scripts/bench/scheduling/engine.py",
        "if full and self._running:",
        "if False and self._running:",
        f"{SIMULATOR}::test_a_full_engine_takes_a_request_when_another_has_ended",
    ),
)
