"""The MCP conformance suite's client scenarios, against our client. `python -m tests.sampler.conformance` prints them."""

from fnmatch import fnmatchcase

import pytest

from tests.sampler.conformance import NOT_RUN, RUN, listed, missing, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]


@pytest.mark.parametrize(("scenario", "spec", "revision"), RUN)
def test_a_conformance_scenario_passes(scenario: str, spec: str, revision: str) -> None:
    outcome = run(scenario, spec, revision)
    assert outcome.passed, outcome.output


def test_every_client_scenario_of_the_suite_is_run_or_has_its_reason() -> None:
    names = listed()
    assert len(names) > 40
    running = {scenario for scenario, _, _ in RUN}
    left_out = {name for name in names if any(fnmatchcase(name, pattern) for pattern in NOT_RUN)}
    assert set(names) == running | left_out
    assert not running & left_out
    for pattern in NOT_RUN:
        assert any(fnmatchcase(name, pattern) for name in names), pattern
