"""`max_staleness: 0`: groups of a step are opened once every engine that takes requests serves the weights of the step before."""

from collections.abc import Mapping
from typing import Any

import pytest

from shared.documents.run import Admission, InferenceService
from shared.documents.states import ServiceStatus
from shared.processes.waits import Wait
from shared.store import Store
from shared.store.admission import OffPolicyBudget
from shared.tasks.admission import seq_limit


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps whose trained groups no longer count."""
    steps: list[int] = []

    async def count(self: object, policy: str, budgets: Mapping[str, OffPolicyBudget]) -> int:
        steps.append(budgets[policy].step)
        return 1

    monkeypatch.setattr("shared.store.admission.AdmissionVerbs.seq_limit", count)
    return steps


async def reason(store: Store, max_staleness: int = 0) -> str | Wait:
    admission = Admission(groups_per_step=2, max_staleness=max_staleness)
    return (await seq_limit(store, ["main"], {"main": admission}))[1]


async def engine(store: Store, name: str, version: int, **fields: Any) -> None:
    values = {"policy": "main", "status": ServiceStatus.UP, "heartbeat_s": 3600.0} | fields
    await store.services.heartbeat(InferenceService(id=name, url=name, version=version, **values))


async def test_an_engine_that_still_serves_the_weights_before_opens_no_further_group(
    store: Store, counted: list[int]
) -> None:
    for step in range(3):
        await store.versions.announce("main", step, f"/{step}", {})
    await engine(store, "http://a", 2)
    await engine(store, "http://b", 1)
    why = await reason(store)
    assert isinstance(why, Wait)
    assert "version 2" in str(why)
    await engine(store, "http://b", 2)
    assert await reason(store) == "sampling"
    assert counted == [1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": ServiceStatus.UPDATING},
        {"status": ServiceStatus.DOWN},
        {"follow_every": 4},
        {"serve_version": 0},
        {"error": "version 1 is damaged"},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_nobody_waits_for_an_engine_that_will_not_follow_or_takes_no_request(
    store: Store, counted: list[int], fields: dict[str, Any]
) -> None:
    for step in range(2):
        await store.versions.announce("main", step, f"/{step}", {})
    await engine(store, "http://a", 1)
    await engine(store, "http://b", 0, **fields)
    assert (await reason(store), counted) == ("sampling", [1])


async def test_above_0_groups_are_opened_while_engines_follow(store: Store, counted: list[int]) -> None:
    for step in range(2):
        await store.versions.announce("main", step, f"/{step}", {})
    await engine(store, "http://a", 0)
    assert (await reason(store, max_staleness=1), counted) == ("sampling", [1])
