"""The answer is looked for outside of the reasoning, in every sampler and dialect."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from sampler.core.api_models.json_reply import last_object
from sampler.core.episode.episode import play
from sampler.core.episode.threads import EpisodeThreads
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.parsers import PARSERS
from sampler.core.parsers.reasoning import TAGS, behind_reasoning
from sampler.core.rendering.template import ChatTemplate
from sampler.core.scorers.answers import extract_answer
from sampler.core.scorers.scored_text import ScoredText
from sampler.gateway.agent_sampler import AgentTask
from shared.store import Store
from tests.sampler.episodes import MODEL, TEMPLATE, ended, resources, says
from tests.sampler.gateway.agents import ScriptedEngine, played
from tests.shared.builders import claim, import_tasks

INSIDE = "<think>so <answer>4</answer></think>I give up."
CUT = "<think>maybe <answer>4</answer> but let me"
BEHIND = "<think>maybe <answer>5</answer></think>It is <answer>4</answer>."
SCORES = {INSIDE: 0.0, CUT: 0.0, BEHIND: 1.0, f"Well, {CUT}": 0.0, "so <answer>4</answer></think>No.": 0.0}
HEADER = "{{- '<|im_start|>assistant\\n' }}\n{%- endif %}"
OPENED = ChatTemplate.from_dir(
    MODEL, template_text=TEMPLATE.text.rstrip().replace(HEADER, HEADER.replace("\\n'", "\\n<think>\\n'"))
)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "2+2?"}]},
    "/v1/responses": {"input": "2+2?"},
    "/v1/messages": {"max_tokens": 64, "messages": [{"role": "user", "content": "2+2?"}]},
    "/v1beta/models/main:generateContent": {"contents": [{"role": "user", "parts": [{"text": "2+2?"}]}]},
}


@pytest.mark.parametrize(
    ("text", "in_reasoning", "outside"),
    [
        (INSIDE, False, "I give up."),
        (CUT, False, ""),
        ("4 <think>or 5</think>.", False, "4 ."),
        ("R</think>4", False, "4"),
        ("R</think>4", True, "4"),
        ("R <think> R</think>4", True, "4"),
        ("R, and no end", True, ""),
        ("<think>a</think>b<think>c</think>d", False, "bd"),
        ("<think>a</think>b</think>c", False, "c"),
        ("<think>a [/THINK] b</think>c", False, "c"),
        ("4", False, "4"),
        ("", True, ""),
    ],
)
def test_the_answers_text_is_outside_of_reasoning(text: str, in_reasoning: bool, outside: str) -> None:
    assert behind_reasoning(text, in_reasoning=in_reasoning) == outside


@pytest.mark.parametrize(("begin", "end"), TAGS)
def test_every_familys_tags_hide_an_answer(begin: str, end: str) -> None:
    inside, cut = f"{begin}<answer>4</answer>{end}", f"{begin}<answer>4</answer> but"
    texts = (f"{inside}No.", cut, f"Well. {cut}", f"<answer>4</answer>{end}No.")
    assert [extract_answer(ScoredText(text).answer_text, "answer") for text in texts] == [None] * 4
    assert ScoredText(f"{begin}5{end}4").answer_text == "4"
    assert ScoredText(f"5{end}4", in_reasoning=True).answer_text == "4"


def test_every_parsers_own_reasoning_is_none_of_the_answers_text() -> None:
    for name, parse in PARSERS.items():
        for begin, end in TAGS:
            parsed = parse(f"{begin}hm{end}It is 4.", ())
            assert not parsed.reasoning or parsed.content == behind_reasoning(f"{begin}hm{end}It is 4."), name


def test_a_judge_that_is_cut_off_in_its_reasoning_has_given_no_score() -> None:
    assert last_object('<think>perhaps {"score": 10} but') == {}
    assert last_object('<think>{"score": 10}</think>{"score": 2}') == {"score": 2}


@pytest.mark.parametrize("reply", SCORES)
async def test_our_own_sampler_scores_what_stands_outside_of_reasoning(store: Store, reply: str) -> None:
    assert await native(store, reply, TEMPLATE) == SCORES[reply]


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("maybe <answer>4</answer> but", 0.0),
        ("so <answer>4</answer></think>No.", 0.0),
        ("R</think><answer>4</answer>", 1.0),
    ],
)
async def test_reasoning_that_the_prompt_opened_has_no_answer(store: Store, reply: str, score: float) -> None:
    """Only its end shows in the reply, or nothing where it was cut off."""
    assert await native(store, reply, OPENED) == score


def test_a_call_in_reasoning_that_the_prompt_opened_is_none_also_before_a_think_tag() -> None:
    threads = EpisodeThreads.__new__(EpisodeThreads)
    threads._resources = cast("Any", SimpleNamespace(parser=PARSERS["hermes"]))
    view = cast("Any", SimpleNamespace(context=SimpleNamespace(tools=())))
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call> R <think> R</think>No.'
    parsed = threads._parsed(text, view, may_call=True, in_reasoning=True)
    assert (parsed.tool_calls, parsed.content) == ([], "No.")
    assert len(threads._parsed(text, view, may_call=True, in_reasoning=False).tool_calls) == 1


async def test_a_users_think_tag_at_the_end_of_the_prompt_opens_no_reasoning(store: Store) -> None:
    assert await native(store, "<answer>4</answer>", TEMPLATE, query="2+2? Begin with <think>") == 1.0


async def native(store: Store, reply: str, template: ChatTemplate, query: str = "2+2?") -> float | None:
    await import_tasks(store, 1, num_generations=1)
    await store.database["tasks"].update_many({}, {"$set": {"payload.query": query}})
    async with resources(store, says(reply)) as shared:
        sampler = MCPSampler(replace(shared, template=template), await claim(store))
        await play(sampler)
        record, _, dispatches = await ended(store, sampler)
    (dispatch,) = dispatches
    assert dispatch.response is not None
    assert dispatch.response.in_reasoning == (template is OPENED)
    return record.score


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("reply", [INSIDE, CUT, BEHIND])
async def test_an_agents_last_reply_in_every_dialect(store: Store, path: str, reply: str) -> None:
    async def agent(task: AgentTask) -> None:
        headers = {"authorization": f"Bearer {task.api_key}", "x-api-key": task.api_key, "x-goog-api-key": task.api_key}
        async with httpx.AsyncClient(base_url=task.url, headers=headers, timeout=60) as client:
            (await client.post(path, json={"model": "main", **BODIES[path]})).raise_for_status()

    record, _, _ = await played(store, ScriptedEngine([reply]), agent)
    assert record.score == SCORES[reply]


@pytest.mark.parametrize(("returned", "score"), [*SCORES.items(), ("<think>4", 0.0), ("<think>5</think>4", 1.0)])
async def test_a_text_that_an_agent_returns(store: Store, returned: str, score: float) -> None:
    async def agent(task: AgentTask) -> str:
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {task.api_key}"}, timeout=60) as client:
            await client.post(
                f"{task.base_url}/chat/completions", json={"model": "main", **BODIES["/v1/chat/completions"]}
            )
        return returned

    record, _, _ = await played(store, ScriptedEngine(["4"]), agent)
    assert record.score == score
