"""Pages on tasks, groups, rollouts, tokens, steps, the ledger and the search, on a run of several steps; what each reads."""

import asyncio
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest

from shared.documents.states import Termination
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.viewer.app import RUN_PAGES
from tandem.viewer.trained_tokens import NOT_TRAINED
from tests.tandem.viewer.conftest import Client
from tests.tandem.viewer.stories import Call, Told, ids_of, tell

RUN = "pages"
HOSTILE = "<script>alert(1)</script>\u202eevil\x1b[31m</pre><img src=x onerror=alert(2)>"
GROUPS = 8
SLOTS = 4
RECORD = "main:train:0:t0:1:1"
LONG = "x" * 50_000


def told(seq: int, slot: int) -> Told:
    if seq == 7:
        return Told(failed="engine down", termination=Termination.ENGINE_FAILURE)
    if seq == 6 and slot == 3:
        return Told(replies=((LONG, ()),), termination=Termination.LENGTH_LIMIT)
    call = Call(result=HOSTILE if slot == 2 else "4", is_error=slot == 2)
    reply = "<think>two and two</think>I add" if slot < 2 else HOSTILE
    return Told(score=float(slot % 2), replies=((reply, (call,)), (f"answer {slot}", ())), version=min(seq // 2, 1))


@pytest.fixture(scope="module")
def run(mongod: Mongod) -> Iterator[str]:
    async def play() -> None:
        async with Store.open(mongod.connection_string, RUN) as store:
            await tell(
                store,
                told,
                groups=GROUPS,
                slots=SLOTS,
                source=lambda seq: "openai/gsm8k" if seq % 2 else "sums",
                steps=2,
                groups_per_step=2,
                settings={"reserve_context_error_count": 0},
            )
            await store.steps.note_metrics("main:1:1", {"reward/mean": 0.5, "loss/mismatch_mean_nats": 0.01})

    asyncio.run(play())
    yield RUN
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database(RUN)


PATHS = {
    "tasks": "/tasks",
    "tasks of a source": "/tasks?source=sums",
    "held-out tasks": "/tasks?split=eval",
    "forks": "/tasks?split=fork",
    "episodes of forks": "/search?split=fork",
    "tools of forks": "/tools?split=fork",
    "group": "/groups/main:train:0:t0",
    "failed group": "/groups/main:train:0:t7",
    "tree": "/groups/main:train:0:t0/tree",
    "rollout": f"/rollouts/{RECORD}",
    "hostile rollout": "/rollouts/main:train:0:t0:2:1",
    "long rollout": "/rollouts/main:train:0:t6:3:1",
    "tokens": f"/rollouts/{RECORD}/tokens",
    "tokens of a turn": f"/rollouts/{RECORD}/tokens?turn=1&by=version&token=3",
    "steps": "/steps",
    "step": "/steps/main/1",
    "search of tools by name": "/tools",
    "ledger": "/ledger",
    "search": "/search",
    "search of scores": "/search?min_score=1&source=sums&split=train",
    "search of tools": "/search?tool=calculator&tool_error=1",
    "search of text": "/search?text=answer 3",
    "a choice of two rollouts": "/compare",
    "two rollouts": "/compare?a=main:train:0:t0:0:1&b=main:train:0:t0:3:1",
    "two versions": "/versions?a=0&b=1",
}


async def test_every_page_is_listed_here() -> None:
    templates = {page.path for page in RUN_PAGES if page.template and page.path}
    tried = {re.sub(r"\?.*", "", path) for path in PATHS.values()}
    patterns = [re.sub(r"\{\w+(:path)?\}", "[^/]+", path) for path in templates]
    assert not [
        p
        for p in patterns
        if p.startswith(("/tasks", "/groups", "/rollouts", "/steps", "/tools", "/ledger", "/search"))
        and not any(re.fullmatch(p, path) for path in tried)
    ]


@pytest.mark.parametrize("name", PATHS)
async def test_a_page_is_shown_and_has_a_twin_as_json(viewer: Client, run: str, name: str) -> None:
    path = f"/runs/{run}{PATHS[name]}"
    html = await viewer.get(path)
    assert html.status_code == 200, html.text
    bare, _, query = path.partition("?")
    data = await viewer.get(f"{bare}.json?{query}")
    assert data.status_code == 200, data.text
    assert data.json()


@pytest.mark.parametrize("name", PATHS)
async def test_what_a_model_or_a_tool_wrote_is_text_on_every_page(viewer: Client, run: str, name: str) -> None:
    html = (await viewer.get(f"/runs/{run}{PATHS[name]}")).text
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert not re.search("[\u202e\x1b]", html)
    assert not re.search(r"<style|\sstyle=|\son\w+=\"|javascript:", html)


async def test_the_hostile_text_is_there_to_be_read(viewer: Client, run: str) -> None:
    html = (await viewer.get(f"/runs/{run}{PATHS['hostile rollout']}")).text
    assert (
        html.count("&lt;script&gt;alert(1)&lt;/script&gt;⟨U+202E⟩evil⟨U+001B⟩[31m") >= 3
    )  # reply, result, next message


async def examined(mongod: Mongod, viewer: Client, path: str) -> list[dict[str, Any]]:
    """What the server's profiler says of the commands of one page."""
    with pymongo.MongoClient(mongod.connection_string) as client:
        database = client[RUN]
        database.command("profile", 0)
        database.drop_collection("system.profile")
        database.command("profile", 2)
        answer = await viewer.get(path)
        database.command("profile", 0)
        assert answer.status_code == 200
        entries = list(database["system.profile"].find({"op": {"$in": ["query", "command", "getmore"]}}))
        database.drop_collection("system.profile")
    return [entry for entry in entries if "planSummary" in entry]


SMALL = {
    "runs",
    "policy_versions",
    "inference_services",
    "workers",
    "settings",
}  # some documents, or one for each version


@pytest.mark.parametrize("name", PATHS)
async def test_a_page_reads_by_an_index_and_little_more_than_it_shows(
    mongod: Mongod, viewer: Client, run: str, name: str
) -> None:
    found = [
        e for e in await examined(mongod, viewer, f"/runs/{run}{PATHS[name]}") if e["ns"].split(".")[1] not in SMALL
    ]
    scans = [(e["ns"], e["command"]) for e in found if "COLLSCAN" in e["planSummary"]]
    assert scans == []
    turns = 7 * SLOTS * 2 + 3  # a search by tool or text reads the turns of the episodes that fit the rest: here all
    allowed = turns if "search of t" in name else 4 * GROUPS
    wasted = [
        (e["ns"], e["docsExamined"], e["nreturned"], e["planSummary"])
        for e in found
        if e["docsExamined"] > max(allowed, 4 * e.get("nreturned", 0))
    ]
    assert wasted == []


async def json_of(viewer: Client, path: str, run: str = RUN) -> dict[str, Any]:
    bare, _, query = path.partition("?")
    answer = await viewer.get(f"/runs/{run}{bare}.json?{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_pass_rates_are_by_source_and_in_time(viewer: Client, run: str) -> None:
    view = await json_of(viewer, "/tasks")
    assert view["sources"] == ["openai/gsm8k", "sums"]
    assert [s["every"]["passed"] for s in view["stretches"]] == [2, 2, 2, 2, 2, 2, 1, 0]
    assert view["rates"][1] == [0.5, None, 0.5, None, 0.5, None, 1 / 4, None]
    assert view["stretches"][7]["every"]["failed"] == SLOTS


async def test_a_group_says_where_its_rollouts_part(viewer: Client, run: str) -> None:
    view = await json_of(viewer, "/groups/main:train:0:t0")
    letters = [[cell["letter"] for cell in row] for row in view["rows"]]
    assert letters == [["A", "A", "B", "B"], ["A", "B", "C", "D"]]
    assert [attempt["parts_at"] for attempt in view["attempts"]] == [None, 1, 0, 0]
    assert [attempt["record"]["advantage"] for attempt in view["attempts"]] == [-0.5, 0.5, -0.5, 0.5]


async def test_merging_is_counted_as_the_trainer_counts_it(viewer: Client, run: str, mongod: Mongod) -> None:
    from shared.tokens.flatten import tree_of
    from trainer.trees.tree import merge

    view = await json_of(viewer, "/groups/main:train:0:t0/tree")
    async with Store.open(mongod.connection_string, RUN) as store:
        data = await store.data.find({"task": "main:train:0:t0"})
        tokens = await store.records.tokens_of([d.record for d in data])
    tree = merge([tree_of(d, tokens[d.record]) for d in data])
    assert view["counts"] == {"num_flat": tree.num_flat, "num_linear": tree.num_linear, "num_tree": tree.num_tree}
    assert sum(branch["tokens"] for branch in view["branches"]) == tree.num_tree
    assert view["branches"][0]["slots"] == [0, 1, 2, 3]


async def test_a_rollout_has_its_reasoning_calls_and_reasons(viewer: Client, run: str) -> None:
    view = await json_of(viewer, f"/rollouts/{RECORD}")
    first, second = view["threads"][0]["turns"]
    assert (first["reasoning"], first["reply"]) == ("two and two", "I add")
    assert (first["calls"][0]["id"], first["calls"][0]["duration_s"]) == ("c00", 0.25)
    assert second["messages"] == [{"role": "tool", "text": "4", "parts": [], "name": None, "call_id": "c00"}]
    assert view["record"]["reward_details"] == {"scorer": "math", "reason": "right"}
    assert view["data"][0]["trained_steps"] == [1]


async def test_a_token_says_what_the_documents_have_and_what_they_do_not(viewer: Client, run: str) -> None:
    view = await json_of(viewer, f"/rollouts/{RECORD}/tokens?turn=1&token=3")
    assert [token["id"] for token in view["tokens"]] == [7, 8, *(ids := ids_of("answer 1", 1, 3))]
    chosen = view["chosen"]
    assert (chosen["id"], chosen["logprob"], chosen["version"], chosen["staleness"]) == (ids[1], -0.5, 0, [0])
    assert (view["advantage"], view["is_trained"], view["steps"]) == (0.5, True, [1])
    assert view["step_metrics"] == {"1": {"loss/mismatch_mean_nats": 0.01}}
    (trained,) = chosen["trained"]
    assert (trained["step"], trained["logprob"], trained["marks"]) == (1, pytest.approx(-0.4), [])
    assert (trained["difference"], trained["ratio"]) == (pytest.approx(0.1), pytest.approx(math.exp(0.1)))
    assert [token["trained"] for token in view["tokens"][:2]] == [[], []], "the prompt"
    assert view["tokens"][4]["trained"][0]["marks"] == ["clipped: the ratio is above the range"]
    assert view["why_no_difference"] == ""
    html = (await viewer.get(f"/runs/{run}/rollouts/{RECORD}/tokens?token=3")).text
    assert "+0.1 nats" in html
    assert "neither clipped nor masked" in html


@pytest.mark.parametrize(
    ("colour", "shades"), [("difference", [0, 0, 5, 5, 5]), ("ratio", [0, 0, 6, 6, 6]), ("mask", [0, 0, 9, 9, 5])]
)
async def test_tokens_are_coloured_by_what_the_trainer_computed(
    viewer: Client, run: str, colour: str, shades: list[int]
) -> None:
    view = await json_of(viewer, f"/rollouts/{RECORD}/tokens?turn=1&by={colour}")
    assert [token["shade"] for token in view["tokens"]] == shades


async def test_a_link_by_position_finds_the_token(viewer: Client, run: str) -> None:
    """As the page of a step links it: counted from the begin of the whole context."""
    step = await json_of(viewer, "/steps/main/1")
    found = next(d for d in step["differences"] if d["record"] == RECORD)
    address = f"/rollouts/{RECORD}/tokens?turn={found['largest_turn']}&position={found['largest_place']}"
    view = await json_of(viewer, address)
    assert view["chosen"]["place"] == view["prompt"], "the first that the turn sampled"
    assert (await json_of(viewer, f"/rollouts/{RECORD}/tokens?turn=1&position=0"))["chosen"] is None


async def test_what_the_trainer_did_not_store_is_said_and_not_made_up(viewer: Client, run: str) -> None:
    untrained = await json_of(viewer, "/rollouts/main:train:0:t4:1:1/tokens?by=difference")
    assert untrained["why_no_difference"] == NOT_TRAINED
    assert {token["shade"] for token in untrained["tokens"]} == {0}


async def test_a_step_says_what_it_was_made_of(viewer: Client, run: str) -> None:
    view = await json_of(viewer, "/steps/main/2")
    assert [group["task"] for group in view["data"]] == ["main:train:0:t2", "main:train:0:t3"]
    assert view["versions"] == [{"version": 1, "staleness": 0, "records": 8, "step": 1, "withdrawn": False}]
    assert (view["disagreement"], view["first_version"]["version"]) == ("", 2)
    last = await json_of(viewer, "/search?status=abandoned")
    assert [(r["_id"], r["reason"]) for r in last["found"]] == [
        ("main:train:0:t6:3:1", "over-long, beyond the 0 kept of a group")
    ]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("split=train&max_score=0&source=sums", 9),
        ("tool=calculator&tool_error=1", 7),
        ("tool=nothing", 0),
        ("text=answer 3", 6),
        ("text=.*", 0),
        ("termination=engine_failure", 4),
        ("step=1", 8),
        ("version=1&tid=t3", 4),
    ],
)
async def test_the_search_finds_what_fits_and_its_query_finds_the_same(
    viewer: Client, run: str, query: str, found: int
) -> None:
    view = await json_of(viewer, f"/search?{query}")
    assert len(view["found"]) == found


@pytest.mark.parametrize(
    "path",
    [
        "/search?min_score=x",
        "/search?split=other",
        "/steps/main/x",
        "/tasks?split=x",
        f"/rollouts/{RECORD}/tokens?by=x",
        "/compare?a=1",
        f"/rollouts/{RECORD}/text?part=x",
        "/groups/main:train:0:t0/export/x",
        "/ledger?groups=0",
    ],
)
async def test_a_wrong_parameter_is_told(viewer: Client, run: str, path: str) -> None:
    answer = await viewer.get(f"/runs/{run}{path}")
    assert answer.status_code == 400
    assert "expected" in answer.text


@pytest.mark.parametrize("path", ["/groups/no", "/rollouts/no", "/steps/main/99", f"/rollouts/{RECORD}/tokens?turn=9"])
async def test_what_is_not_there_is_told(viewer: Client, run: str, path: str) -> None:
    assert (await viewer.get(f"/runs/{run}{path}")).status_code == 404


async def test_exports_are_whole_documents_and_conversations(viewer: Client, run: str) -> None:
    answer = await viewer.get(f"/runs/{run}/groups/main:train:0:t0/export/jsonl")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["record"]["_id"] for row in rows] == [f"main:train:0:t0:{k}:1" for k in range(SLOTS)]
    assert rows[0]["dispatches"][0]["response"]["output_ids"] == ids_of(told(0, 0).replies[0][0], 0, 3)
    assert rows[0]["record_data"][0]["trained_steps"] == [1]
    talk = await viewer.get(f"/runs/{run}/rollouts/{RECORD}/export/openai")
    (row,) = [json.loads(line) for line in talk.text.splitlines()]
    assert [m["role"] for m in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    call = row["messages"][1]["tool_calls"][0]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("calculator", {"e": "2+2"})
    assert row["messages"][2]["tool_call_id"] == call["id"]
    assert row["tools"][0]["function"]["name"] == "calculator"
    for path in ("/steps/main/1/export/jsonl", "/search/export/openai?source=sums"):
        assert len((await viewer.get(f"/runs/{run}{path}")).text.splitlines()) in (8, 16), path


async def test_megabytes_are_folded_and_whole_as_a_file(viewer: Client, run: str) -> None:
    html = (await viewer.get(f"/runs/{run}{PATHS['long rollout']}")).text
    assert LONG not in html
    answer = await viewer.get(f"/runs/{run}/rollouts/main:train:0:t6:3:1/text?turn=0&part=reply")
    assert answer.text == LONG
    assert answer.headers["content-type"].startswith("text/plain")
    assert "attachment" in answer.headers["content-disposition"]


async def test_a_compass_query_is_on_every_page(viewer: Client, run: str) -> None:
    for name, path in PATHS.items():
        html = (await viewer.get(f"/runs/{run}{path}")).text
        assert "db.getCollection(" in html, name
