"""An open dashboard asks again: it is told that nothing is new, cheaply, and everything that is new."""

from typing import Any

from shared.documents.run import Admission, TrainedStep
from shared.store import Store
from tests.tandem.viewer.conftest import Client
from tests.tandem.viewer.test_dashboard import add_steps


async def test_nothing_new_is_304_and_each_change_is_told_once(store: Store, viewer: Client) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1))
    await add_steps(store, [1, 2])
    path, tag = f"/runs/{store.run}/curves.json", ""

    async def asked() -> int:
        nonlocal tag
        answer = await viewer.get(path, headers={"if-none-match": tag})
        tag = answer.headers["etag"]
        return answer.status_code

    async def held_out(seq: int) -> None:
        task = {
            "policy": "main",
            "split": "eval",
            "status": "settled",
            "seq": seq,
            "epoch": 0,
            "tid": f"h{seq}",
            "source": "s",
        }
        await store.database["tasks"].insert_one({"_id": f"e{seq}", **task, "at_version": 0, "scores": [1.0]})

    assert [await asked(), await asked(), await asked()] == [200, 304, 304]
    await store.steps.add(TrainedStep(id="main:3:1", policy="main", step=3, trainer_generation=1, groups=[("t", 8)]))
    assert [await asked(), await asked()] == [200, 304]
    await store.steps.note_metrics("main:3:1", {"reward/mean": 0.25})
    assert [await asked(), await asked()] == [200, 304]
    for seq in (5, 3):  # a round's tasks are over in any order
        await held_out(seq)
        assert [await asked(), await asked()] == [200, 304]
    await store.versions.announce("main", 3, "path", {})
    assert [await asked(), await asked()] == [200, 304]
    seen = await store.runs.read()
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1), seen=seen)
    await asked()
    await add_steps(store, [3], generation=2, reward=0.75)  # again, after a resume
    assert [await asked(), await asked()] == [200, 304]
    assert (await viewer.get(path)).status_code == 200, "one that has seen nothing gets everything"
    found: dict[str, Any] = (await viewer.get(path)).json()
    reward = next(chart for chart in found["charts"] if chart["key"] == "reward")
    assert (reward["steps"], reward["series"][0]["values"]) == ([3], [0.75])
    assert found["row"]["step"] == 3


async def test_nothing_new_reads_a_few_documents(store: Store, viewer: Client) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1))
    await add_steps(store, range(1, 60))
    path = f"/runs/{store.run}/curves.json"
    tag = (await viewer.get(path)).headers["etag"]
    await store.database.command("profile", 2)
    assert (await viewer.get(path, headers={"if-none-match": tag})).status_code == 304
    await store.database.command("profile", 0)
    asked = await store.database["system.profile"].find({"docsExamined": {"$gt": 0}}).to_list()
    assert sum(one["docsExamined"] for one in asked) <= 10
