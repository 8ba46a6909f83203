"""Figures of the pages against the documents that they are of."""

from shared.documents.run import TrainedStep, step_id
from shared.store import Store
from shared.store.views.dashboard import reward_sources, step_rows
from tandem.viewer.curves import SOURCE
from tests.shared.builders import set_settings
from tests.tandem.viewer.conftest import Client
from tests.tandem.viewer.stories import Told, tell


async def test_a_token_of_an_episode_that_the_trainer_leaves_out_has_no_loss(viewer: Client, store: Store) -> None:
    await tell(store, lambda seq, slot: Told(score=float(slot % 2 if seq else 1)), groups=2, steps=1, groups_per_step=2)
    paths = [f"/runs/{store.run}/rollouts/main:train:0:t{seq}:0:1/tokens.json" for seq in (0, 1)]
    assert [(await viewer.get(path)).json()["is_trained"] for path in paths] == [True, True]
    for settings, left_out, why in (
        ({"drop_zero_advantage": True}, [True, False], "drop_zero_advantage"),
        ({"minimal_advantage": 0.25}, [True, False], "minimal_advantage"),
        ({"skip_non_positive_advantage": True}, [True, True], "skip_non_positive_advantage"),
    ):
        await set_settings(store, "trainer-main", settings)
        found = [(await viewer.get(path)).json() for path in paths]
        assert [not view["is_trained"] for view in found] == left_out
        assert [why in view["why_not"] for view in found] == left_out


async def test_a_copy_without_indexes_and_with_a_broken_document_is_shown_and_exported(
    viewer: Client, store: Store
) -> None:
    await tell(store, lambda seq, slot: Told(score=float(slot % 2)), groups=1, steps=1)
    for name in await store.database.list_collection_names():
        await store.database[name].drop_indexes()
    run, broken = f"/runs/{store.run}", "main:train:0:t0:1:1"
    for page in ("", "/timeline", "/tasks", "/steps", "/tools", "/ledger", "/search"):
        assert (await viewer.get(run + page)).status_code == 200, page
    await store.database["dispatched_sampling_tasks"].update_one({"record": broken}, {"$set": {"tool_calls": -1}})
    for form in ("jsonl", "openai"):
        rows = (await viewer.get(f"{run}/groups/main:train:0:t0/export/{form}")).text.splitlines()
        assert [broken in row and "tool_calls" in row and '"error"' in row for row in rows if "valid list" in row] == [
            True
        ]
        assert len(rows) == 4
    await store.database["records"].update_one({"_id": broken}, {"$unset": {"error": 1, "advantage": 1, "answer": 1}})
    assert (await viewer.get(f"{run}/search")).status_code == 200


async def test_a_source_with_a_dot_has_its_curve_and_so_has_a_step_whose_metrics_come_later(store: Store) -> None:
    name = f"{SOURCE}gsm8k-v1.1"
    for step in (1, 2):
        identity = step_id("main", step, 1)
        await store.steps.add(
            TrainedStep(id=identity, policy="main", step=step, trainer_generation=1, groups=[("t", 8)])
        )
        if step == 1:
            await store.steps.note_metrics(identity, {name: 0.5, "reward/mean": 0.5, "loss/loss": 1.0, "alarm/a": 1.0})
    assert await reward_sources(store, "main", SOURCE) == [name]
    rows = await step_rows(store, await store.runs.read(), "main", [name, "reward/mean"])
    assert [row.metrics for row in rows] == [{name: 0.5, "reward/mean": 0.5, "alarm/a": 1.0}, {}]
