"""Pages of runs that went back: a step that a resume undid, forks of a turn; and ids in their addresses."""

import math
from typing import Any

from shared.documents.fork import ForkOrigin
from shared.documents.run import Admission
from shared.episodes.origin import queue_fork, read_origin
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.viewer.page_request import in_url
from tests.shared.builders import claim
from tests.shared.episodes import play, whole_run
from tests.tandem.viewer.conftest import Client

RECORD = "main:train:0:t0:1:1"


async def json_of(viewer: Client, path: str, run: str) -> dict[str, Any]:
    answer = await viewer.get(f"/runs/{run}{path}.json")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_log_probs_of_a_step_that_a_resume_undid_are_not_shown(mongod: Mongod, viewer: Client) -> None:
    async def shown(record: str) -> tuple[list[int], list[float]]:
        """Steps of the last token that stored a log-prob, and the largest differences of the step."""
        view = await json_of(viewer, f"/rollouts/{record}/tokens", run="undone")
        step = await json_of(viewer, "/steps/main/1", run="undone")
        steps = [trained["step"] for trained in view["tokens"][-1]["trained"]]
        return steps, [d["largest_difference"] for d in step["differences"]]

    admission = Admission(groups_per_step=1, max_staleness=0)
    async with Store.open(mongod.connection_string, "undone") as store:
        await store.runs.start_trainer("main", admission)
        (record, *_) = await whole_run(store)
        assert await shown(record) == ([1], [0.1, 0.1])
        await store.runs.start_trainer("main", admission)
        assert await shown(record) == ([], []), "the second start began from step 0"
        (first,) = await store.database["trainer_logprobs"].find({"record": record}).to_list()
        again = {**first, "_id": first["_id"][:-1] + "2", "trainer_generation": 2, "largest_difference": math.inf}
        await store.database["trainer_logprobs"].insert_one(again)
        assert await shown(record) == ([1], [None]), "JSON has no infinity"
        assert "not finite" in (await viewer.get("/runs/undone/steps/main/1")).text
        await store.client.drop_database("undone")


async def test_a_rollout_links_to_its_forks_and_a_fork_to_its_turn(viewer: Client, store: Store) -> None:
    await whole_run(store)
    origin = await read_origin(store, f"{RECORD}:1")
    wanted = ForkOrigin(dispatch=f"{RECORD}:1", sampling_params={"temperature": 1.0}, earlier_calls="stateless")
    task, _ = await queue_fork(store, origin, wanted, 3, again=False)
    rollout = (await viewer.get(f"/runs/{store.run}/rollouts/{RECORD}")).text
    assert f'href="/runs/{store.run}/groups/{in_url(task.id)}"' in rollout
    group = await viewer.get(f"/runs/{store.run}/groups/{task.id}")
    assert f'href="/runs/{store.run}/rollouts/{in_url(RECORD)}#turn-1"' in group.text
    assert f'href="/runs/{store.run}/tasks?policy=main&amp;split=fork&amp;before=1#groups"' in group.text
    held = await claim(store, split="fork")
    await play(store, held, 1.0)
    listed = (await viewer.get(f"/runs/{store.run}/tasks.json?split=fork")).json()
    assert [one["_id"] for one in listed["groups"]] == [task.id]
    assert task.id not in (await viewer.get(f"/runs/{store.run}/tasks")).text, "no group of training"
    for path, is_there in (("/search", False), ("/search?split=fork", True), ("/timeline", True)):
        assert (held.record_id in (await viewer.get(f"/runs/{store.run}{path}")).text) is is_there, path
    other = (await viewer.get(f"/runs/{store.run}/rollouts/main:train:0:t0:0:1")).text
    assert "Fork of turn" not in other


def test_ids_of_every_form_lead_to_their_page() -> None:
    assert in_url("main:train:0:openai/gsm8k?.json") == "main:train:0:openai%252Fgsm8k%253F%252Ejson"
