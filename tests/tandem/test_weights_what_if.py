"""`tandem replay` and `tandem bisect` on a run of the bundled model: a planted group is found, altered tokens are found."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pymongo
import pytest

from shared.documents.packed import pack_floats, unpack_floats
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.trainer import planted
from trainer.loop import train

RUN = "planted"
T = TypeVar("T")


class Trained(NamedTuple):
    out: Path
    engine_url: str
    uri: str

    def tandem(self, *arguments: str, status: int = 0) -> Any:
        """A command's JSON, or for a failure what it said."""
        command = [sys.executable, "-m", "tandem", *arguments, "--db_connection_string", self.uri]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in arguments and done.stdout else done.stdout + done.stderr

    def store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        async def opened() -> T:
            async with Store.open(self.uri, RUN) as store:
                return await work(store)

        return asyncio.run(opened())


@pytest.fixture(scope="module")
def trained(mongod: Mongod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    out = tmp_path_factory.mktemp("planted")
    with planted.served() as model:
        run = Trained(out, model.server.url, mongod.connection_string)
        run.store(partial(planted.write_run, model=model))
        train(planted.trainer_config(mongod, RUN, out))
        yield run
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database(RUN)


@pytest.mark.thorough
def test_the_step_and_the_group_with_wrong_rewards_are_found(trained: Trained) -> None:
    found = trained.tandem("bisect", RUN, planted.DECISION, "0", "--run_dir", str(trained.out), "--json")
    assert [moment["step"] for moment in found["moments"]] == list(range(planted.STEPS + 1))
    assert found["turned"]["steps"] == [planted.PLANTED_STEP]
    assert found["turned"]["asked_for"] < 0, "the rewards said that the right call is wrong"
    assert found["turned"]["change"] > found["turned"]["asked_for"], "which momentum hides"
    first, second = found["groups"][:2]
    assert first["task"] == f"main:train:0:t{planted.PLANTED_SEQ}"
    assert first["push"] < 0
    assert first["share"] > 2 * second["share"]
    rewards = {record["reward"] for record in first["records"]}
    assert rewards == {0.0, planted.WRONG_REWARD}, "and its records are shown with their rewards"


@pytest.mark.thorough
def test_the_page_of_a_bisection_names_the_step_the_group_and_its_records(trained: Trained) -> None:
    told = trained.tandem("bisect", RUN, planted.DECISION, "0", "--run_dir", str(trained.out))
    assert f"it turned in step {planted.PLANTED_STEP}:" in told
    assert f"main:train:0:t{planted.PLANTED_SEQ}: its records" in told
    assert f"main:train:0:t{planted.PLANTED_SEQ}:0:1  reward" in told


@pytest.mark.thorough
def test_where_versions_are_gone_checkpoints_stand_in_for_them(trained: Trained, tmp_path: Path) -> None:
    """Of versions 2 to 5 only the checkpoints of steps 2 and 4 are left."""
    versions = trained.store(lambda store: store.versions.all("main"))
    gone = [version for version in versions if 2 <= version.version <= 5]

    async def prune(store: Store, *, pruned: bool) -> None:
        numbers = {"version": {"$in": [version.version for version in gone]}}
        await store.database["policy_versions"].update_many(numbers, {"$set": {"pruned": pruned}})

    whole = trained.tandem("bisect", RUN, planted.DECISION, "0", "--run_dir", str(trained.out), "--json")
    trained.store(lambda store: prune(store, pruned=True))
    try:
        at = ("--at_step", str(planted.PLANTED_STEP))
        found = trained.tandem("bisect", RUN, planted.DECISION, "0", *at, "--run_dir", str(trained.out), "--json")
        alone = trained.tandem("bisect", RUN, planted.DECISION, "0", "--run_dir", str(tmp_path), "--json")
    finally:
        trained.store(lambda store: prune(store, pruned=False))
    assert [(m["step"], m["weights"]) for m in found["moments"]] == [
        *((0, "v0"), (1, "v1"), (2, "checkpoint"), (4, "checkpoint"), (6, "v6")),
    ]
    same = {moment["step"]: moment["logprob"] for moment in whole["moments"]}
    assert [m["logprob"] for m in found["moments"]] == pytest.approx(
        [same[m["step"]] for m in found["moments"]], abs=1e-5
    )
    assert found["turned"]["steps"] == [3, 4]
    against = min(found["groups"], key=lambda group: float(group["push"]))
    assert against["task"] == f"main:train:0:t{planted.PLANTED_SEQ}", [(g["task"], g["push"]) for g in found["groups"]]
    assert [m["step"] for m in alone["moments"]] == [0, 1, 6], "another folder has no checkpoints"


@pytest.mark.thorough
def test_what_cannot_be_bisected_is_refused_with_what_is_there(trained: Trained) -> None:
    here = ("--run_dir", str(trained.out))
    assert "no record 'x'" in trained.tandem("bisect", RUN, "x", "0", *here, status=2)
    assert "its sampled turns are: 0" in trained.tandem("bisect", RUN, planted.DECISION, "3", *here, status=2)
    said = trained.tandem("bisect", RUN, planted.DECISION, "0", "--token", "500", *here, status=2)
    assert "token is 500" in said
    said = trained.tandem("bisect", RUN, planted.DECISION, "0", "--at_step", "50", *here, status=2)
    assert "does not lie between kept weights: those of steps 0 to 6" in said


@pytest.mark.parametrize("way", ["checkpoint", "engine"])
def test_a_replay_agrees_until_a_stored_log_prob_is_altered_and_then_names_the_token(
    trained: Trained, way: str
) -> None:
    flags = ["--engine", trained.engine_url] if way == "engine" else ["--checkpoint", "--run_dir", str(trained.out)]
    found = trained.tandem("replay", RUN, planted.DECISION, *flags, "--json")
    (turn,) = found["turns"]
    assert found["agrees"]
    assert found["compared"] == len(turn["ids"]) > 5
    dispatch = f"{planted.DECISION}:0"

    async def alter(store: Store, by: float) -> None:
        stored = (await store.records.dispatches_of([planted.DECISION]))[planted.DECISION][0].response
        assert stored is not None
        values = unpack_floats(stored.output_logprobs).copy()
        values[4] += by
        change = {"$set": {"response.output_logprobs": pack_floats(values)}}
        await store.database["dispatched_sampling_tasks"].update_one({"_id": dispatch}, change)

    trained.store(lambda store: alter(store, -0.25))
    try:
        altered = trained.tandem("replay", RUN, planted.DECISION, *flags, "--json", status=1)
        page = trained.tandem("replay", RUN, planted.DECISION, *flags, "--tolerance", "0.3")
    finally:
        trained.store(lambda store: alter(store, 0.25))
    assert altered["largest_difference"] == pytest.approx(0.25, abs=1e-4)
    assert (altered["biggest"][0]["token"], altered["biggest"][0]["id"]) == (4, turn["ids"][4])
    assert "agrees" in page


@pytest.mark.thorough
def test_tokens_of_other_weights_than_the_engine_serves_are_not_compared_unless_asked_for(trained: Trained) -> None:
    dispatches = {"_id": f"{planted.DECISION}:0"}

    async def label(store: Store, version: int) -> None:
        (found,) = await store.database["dispatched_sampling_tasks"].find(dispatches).to_list()
        change = {"$set": {"weight_versions": [[version, found["weight_versions"][0][1]]]}}
        await store.database["dispatched_sampling_tasks"].update_one(dispatches, change)

    flags = (RUN, planted.DECISION, "--engine", trained.engine_url)
    trained.store(lambda store: label(store, 3))
    try:
        said = trained.tandem("replay", *flags, status=1)
        assert "no token could be compared" in said
        assert "its tokens of v3, since the engine serves v0" in said
        assert trained.tandem("replay", *flags, "--any_version", "--json")["agrees"]
        wrong = trained.tandem("replay", RUN, planted.DECISION, "--run_dir", str(trained.out), "--json", status=1)
        assert wrong["largest_difference"] > 1e-3, "version 3 has other weights"
    finally:
        trained.store(lambda store: label(store, 0))


def test_a_replay_whose_weights_are_gone_says_which_are_kept(trained: Trained) -> None:
    async def hide(store: Store, *, pruned: bool) -> None:
        await store.database["policy_versions"].update_one({"version": 0}, {"$set": {"pruned": pruned}})

    trained.store(lambda store: hide(store, pruned=True))
    try:
        said = trained.tandem("replay", RUN, planted.DECISION, "--run_dir", str(trained.out), status=1)
    finally:
        trained.store(lambda store: hide(store, pruned=False))
    assert "sampled by versions 0, whose weights are gone; kept are: v1 (step 1)" in said


def test_a_damaged_version_is_an_error_and_no_number(trained: Trained, tmp_path: Path) -> None:
    version = trained.store(lambda store: store.versions.all("main"))[3]
    weights = Path(version.path) / "model.safetensors"
    shutil.copy(weights, tmp_path / "whole")
    data = bytearray(weights.read_bytes())
    data[-10] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(data)
    try:
        said = trained.tandem("bisect", RUN, planted.DECISION, "0", "--run_dir", str(trained.out), status=1)
    finally:
        shutil.copy(tmp_path / "whole", weights)
    assert "the file was changed or damaged" in said
