"""Models are tried in order until one answers; the answer lists earlier failures; no answer is a failure, never a score."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from sampler.core.api_models import pool
from sampler.core.api_models.breaker import Breaker
from sampler.core.api_models.config import read_agents_config
from sampler.core.errors import AgentFailed
from shared.processes.mongod import free_port
from tests.sampler.agents.agents import SLOW, browser, judge, models
from tests.sampler.agents.endpoints import BAD, Service, endpoint

MAY_PASS = {
    "status 500": "status 500",
    "status 503": "status 503",
    "status 429": "status 429",
    "hangs": "no answer within 0.5 s",
    "drips": "no answer within 0.5 s",
    "closes": "connection failed",
    "is cut": "connection failed",
    "garbage": "not JSON",
    "half JSON": "not JSON",
    "no text": "no text",
    "blank": "no text",
    "no choices": "no choices",
    "a list": "no choices",
    "aborted": "ended by 'abort'",
    "says I would not like to decide.": "unusable reply",
}
CANNOT_PASS = {"status 400": "status 400", "status 401": "status 401", "status 404": "status 404"}


def test_every_misbehavior_of_an_endpoint_is_tried() -> None:
    assert set(BAD) <= set(MAY_PASS)


@pytest.mark.parametrize("behavior", [*MAY_PASS, *CANNOT_PASS])
async def test_the_next_model_answers_and_the_answer_lists_earlier_failures(behavior: str) -> None:
    async with endpoint(behavior) as bad, endpoint("judges") as good:
        agent = judge(bad, good)
        verdict = await agent.verdict("2+2?", "4", "It is 4.")
        wrong = await agent.verdict("2+2?", "4", "It is 5.")
        await agent.close()
    assert (verdict.is_correct, wrong.is_correct) == (True, False)
    assert (verdict.use.model, verdict.use.service) == ("m2", good.url)
    assert (verdict.use.prompt_tokens, verdict.use.completion_tokens) == (11, 2)
    asked = 2 if behavior in MAY_PASS else 1
    # The patience with a slow one may end before it has heard of the request.
    assert len(bad.requests) == 2 * asked or behavior in SLOW
    assert [(f.model, f.service) for f in verdict.use.failures] == [("m1", bad.url)] * asked
    for failure in verdict.use.failures:
        assert (MAY_PASS | CANNOT_PASS)[behavior] in failure.error
    assert verdict.use.duration_s > 0


@pytest.mark.parametrize("behavior", MAY_PASS)
async def test_a_transient_failure_is_retried_with_the_same_model(behavior: str) -> None:
    async with endpoint(behavior, "judges") as service, endpoint("judges") as other:
        agent = judge(models=models([service, other], timeout=5.0 if behavior in SLOW else None))
        verdict = await agent.verdict("2+2?", "4", "4")
        await agent.close()
    assert (verdict.is_correct, verdict.use.model, len(verdict.use.failures)) == (True, "m1", 1)
    assert (len(service.requests), len(other.requests)) == (2, 0)


async def test_a_judge_with_unreadable_replies_gets_the_reason_and_a_bounded_number_of_retries() -> None:
    async with endpoint("says Hm, hard to say.") as service:
        agent = judge(service, max_retries=3)
        with pytest.raises(AgentFailed, match="Hm, hard to say"):
            await agent.verdict("2+2?", "4", "4")
        await agent.close()
    assert len(service.requests) == 4
    roles = [[m["role"] for m in body["messages"]] for _, body in service.requests]
    assert roles == [["user"]] + [["user", "assistant", "user"]] * 3
    assert "one word" in service.prompts()[1]


async def test_when_every_model_fails_the_error_names_each_and_carries_all_failures() -> None:
    nobody = Service([], f"http://127.0.0.1:{free_port()}/v1")
    async with endpoint("status 500") as one, endpoint("garbage") as two:
        agent = judge(one, two, nobody)
        with pytest.raises(
            AgentFailed, match=r"no model of scorer_agent gave an answer: m1 at .*m2 at .*m3 at "
        ) as caught:
            await agent.verdict("2+2?", "4", "4")
        await agent.close()
    use = caught.value.use
    assert (use.model, [f.model for f in use.failures]) == (None, ["m1", "m1", "m2", "m2", "m3", "m3"])
    async with endpoint("raw " + "?" * 400) as service:
        many = judge(models=models([service] * 8), max_retries=0)
        with pytest.raises(AgentFailed) as caught:
            await many.verdict("2+2?", "4", "4")
        await many.close()
    assert 2000 < len(str(caught.value)) < 2100
    assert len(caught.value.use.failures) == 8


async def test_each_further_request_to_a_model_waits_longer_by_the_backoff_factor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    nobody = Service([], f"http://127.0.0.1:{free_port()}/v1")
    agent = judge(nobody, max_retries=4, retry_delay=2, backoff_factor=3)
    monkeypatch.setattr("sampler.core.api_models.pool.asyncio.sleep", sleep)
    with pytest.raises(AgentFailed):
        await agent.verdict("2+2?", "4", "4")
    monkeypatch.undo()
    await agent.close()
    assert [most / 2 <= wait <= most for wait, most in zip(waits, (2, 6, 18, 54), strict=True)] == [True] * 4


async def test_a_short_retry_after_is_waited_for_and_a_long_one_leads_to_the_next_model() -> None:
    async with endpoint("status 429 retry-after 0.3", "judges") as short, endpoint("judges") as other:
        agent = judge(short, other)
        verdict = await agent.verdict("2+2?", "4", "4")
        await agent.close()
    assert (verdict.use.model, len(verdict.use.failures)) == ("m1", 1)
    assert verdict.use.duration_s >= 0.3
    async with endpoint("status 429 retry-after 100", "judges") as long, endpoint("judges") as other:
        agent = judge(long, other, max_retries=5)
        verdicts = [await agent.verdict("2+2?", "4", "4") for _ in range(2)]
        await agent.close()
    assert [v.use.model for v in verdicts] == ["m2", "m2"]
    assert len(long.requests) == 1, "it requested a pause"
    assert "paused for" in verdicts[1].use.failures[0].error


async def test_a_model_that_failed_n_times_in_a_row_is_skipped() -> None:
    async with endpoint("status 500") as bad, endpoint("judges") as good:
        agent = judge(bad, good, max_retries=0, breaker_failures=3, breaker_pause_s=1000)
        verdicts = [await agent.verdict("2+2?", "4", "4") for _ in range(6)]
        await agent.close()
    assert all(v.is_correct and v.use.model == "m2" for v in verdicts)
    assert len(bad.requests) == 3
    assert re.search("paused for [0-9.]+ s more, after 3 failures", verdicts[5].use.failures[0].error)


async def test_a_recovered_model_is_used_again_after_its_pause() -> None:
    async with endpoint("status 500", "status 500", "judges") as sick, endpoint("judges") as good:
        agent = judge(sick, good, max_retries=0, breaker_failures=2, breaker_pause_s=0.2)
        before = [(await agent.verdict("2+2?", "4", "4")).use.model for _ in range(2)]
        await asyncio.sleep(0.25)
        after = [(await agent.verdict("2+2?", "4", "4")).use.model for _ in range(2)]
        await agent.close()
    assert (before, after) == (["m2", "m2"], ["m1", "m1"])


def test_after_a_pause_one_caller_tries_and_the_others_wait_for_the_result() -> None:
    now = 0.0
    breaker = Breaker(2, 10.0, clock=lambda: now)
    assert breaker.enter() == 0
    breaker.failed()
    assert breaker.enter() == 0
    breaker.failed()
    assert breaker.enter() == 10
    now = 10.0
    assert [breaker.enter(), breaker.enter()] == [0, 10]
    now = 15.0
    breaker.failed()
    now = 24.0
    assert breaker.enter() == 1
    now = 25.0
    assert breaker.enter() == 0
    breaker.succeeded()
    assert [breaker.enter(), breaker.enter()] == [0, 0]


async def test_a_rejected_request_does_not_trip_the_models_breaker() -> None:
    async with endpoint("status 400", "status 400", "judges") as service:
        agent = judge(service, breaker_failures=1, breaker_pause_s=100)
        for _ in range(2):
            with pytest.raises(AgentFailed, match="status 400"):
                await agent.verdict("2+2?", "4", "4")
        assert (await agent.verdict("2+2?", "4", "4")).is_correct
        await agent.close()


async def test_a_key_goes_to_its_endpoint_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not into the record, an error, a log line or the configuration's text, even if the endpoint repeats it."""
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    async with endpoint("status 500") as loud, endpoint("judges") as good:
        path = tmp_path / "agents.yml"
        entry = "{{model: m, base_url: '{}', api_key: '${{JUDGE_KEY}}'}}"
        both = ", ".join(entry.format(service.url) for service in (loud, good))
        path.write_text(f"scorer_agent: {{retry_delay: 0.01, models: [{both}]}}")
        config = read_agents_config(path).scorer_agent
        assert config is not None
        agent = judge(models=config.models)
        verdict = await agent.verdict("2+2?", "4", "4")
        await agent.close()
    assert loud.requests[0][0]["authorization"] == "Bearer sk-very-secret"
    assert "your key is ***" in verdict.use.failures[0].error
    assert "sk-very-secret" not in str(verdict) + repr(config) + config.model_dump_json() + caplog.text


async def test_an_over_long_answer_is_shortened_and_judged() -> None:
    async with endpoint("says Incorrect") as service:
        agent = judge(service)
        long = await agent.verdict("2+2?", "4", "BEGIN" + "x" * (1_000_000 - 8) + "END")
        await agent.verdict("2+2?", "4", "y" * 16_000)
        await agent.close()
    assert (long.is_correct, long.reply) == (False, "Incorrect")
    shortened, whole = service.prompts()
    assert len(shortened) < 20_000
    assert re.search(r"BEGINx+\n\[… 984000 characters left out …\]\nx+END\n", shortened)
    assert "y" * 16_000 in whole


async def test_braces_in_question_and_answer_stay_unchanged() -> None:
    async with endpoint("says Correct") as service:
        agent = judge(service, judge_prompt_template="{question}|{labeled_answer}|{pred_answer}|{{x}}")
        await agent.verdict("{pred_answer}", "{0}", "{question}")
        await agent.close()
    assert service.prompts() == ["{pred_answer}|{0}|{question}|{x}"]


async def test_a_summary_is_for_its_purpose_and_fails_over_too() -> None:
    text = "Rome has hills.\nParis has towers.\n" * 50
    async with endpoint("status 503") as bad, endpoint("summarizes") as good:
        agent = browser(bad, good)
        summary = await agent.summary_of(text, "What about Paris?")
        assert await agent.summarize(text, "What about Rome?") == "\n".join(["Rome has hills."] * 50)
        await agent.close()
    assert set(summary.text.splitlines()) == {"Paris has towers."}
    assert (summary.use.agent, summary.use.model, len(summary.use.failures)) == ("browse_agent", "m2", 2)


async def test_a_text_above_the_bound_keeps_beginning_and_end() -> None:
    async with endpoint("says ok") as service:
        agent = browser(service, min_prompt_length=10, max_prompt_length=400)
        await agent.summarize("BEGIN" + "x" * 5000 + "END", "all")
        await agent.close()
    prompt = service.prompts()[0]
    assert "BEGIN" in prompt
    assert "END" in prompt
    assert "characters left out" in prompt
    assert prompt.count("x") < 500


async def test_only_long_results_of_browse_tools_are_summarized_and_for_the_purpose_that_is_given() -> None:
    agent = browser(
        models=[{"model": "m", "base_url": "http://x"}],
        browse_tools=["visit", "files_*"],
        default_purpose={"visit": "Look around.", "files_*": "List them."},
        min_prompt_length=10,
    )
    assert await agent.purpose_for("visit", "Find the price. ", "x" * 11) == "Find the price."
    assert await agent.purpose_for("visit", None, "x" * 11) == "Look around."
    assert await agent.purpose_for("visit", ["no text"], "x" * 11) == "Look around."
    assert await agent.purpose_for("visit", "  ", "x" * 11) == "Look around."
    assert await agent.purpose_for("files_read", None, "x" * 11) == "List them."
    assert await agent.purpose_for("visit", None, "x" * 10) is None
    assert await agent.purpose_for("search", "p", "x" * 999) is None
    off = browser(models=agent.config.models, browse_tools=["visit"], min_prompt_length=1, status=False)
    assert await off.purpose_for("visit", None, "x" * 99) is None


class Waits(list[float]):
    """What was slept for, without sleeping."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def waits_of(monkeypatch: pytest.MonkeyPatch, drawn: float) -> Waits:
    """Every back-off of the pool; the random part of each is `drawn`, of what it may lie between."""
    waits = Waits()
    monkeypatch.setattr(pool.asyncio, "sleep", waits)
    monkeypatch.setattr(pool.random, "uniform", lambda low, high: low + drawn * (high - low))
    return waits


@pytest.mark.parametrize(("drawn", "share"), [(0.0, 0.5), (1.0, 1.0)])
async def test_each_retry_waits_longer_by_the_factor_and_the_last_is_followed_by_no_wait(
    monkeypatch: pytest.MonkeyPatch, drawn: float, share: float
) -> None:
    patience = {"max_retries": 3, "retry_delay": 0.5, "backoff_factor": 3.0}
    for behavior in ("status 500", "says Hm."):
        async with endpoint(behavior) as service:
            waits = waits_of(monkeypatch, drawn)
            agent = judge(service, **patience)
            with pytest.raises(AgentFailed):
                await agent.verdict("2+2?", "4", "4")
            await agent.close()
            monkeypatch.undo()
        assert waits == [0.5 * share, 1.5 * share, 4.5 * share]
        assert len(service.requests) == 4


async def test_unreadable_replies_trip_a_judges_breaker_like_failures() -> None:
    async with endpoint("says Hm.") as service, endpoint("judges") as good:
        agent = judge(service, good, max_retries=0, breaker_failures=2, breaker_pause_s=100)
        verdicts = [await agent.verdict("2+2?", "4", "4") for _ in range(3)]
        await agent.close()
    assert [v.use.model for v in verdicts] == ["m2"] * 3
    assert len(service.requests) == 2


async def test_a_success_resets_a_models_failure_count() -> None:
    async with endpoint(*["status 500", "judges"] * 2, "status 500", "judges") as service:
        agent = judge(service, max_retries=1, breaker_failures=2, breaker_pause_s=100)
        for _ in range(3):
            assert (await agent.verdict("2+2?", "4", "4")).is_correct
        await agent.close()
    assert len(service.requests) == 6


async def test_no_service_is_paused_for_more_than_ten_minutes() -> None:
    async with endpoint("status 429 retry-after 100000") as service:
        agent = judge(service)
        for said in ("status 429", r"paused for (600\.0|5\d\d\.\d) s"):
            with pytest.raises(AgentFailed, match=said):
                await agent.verdict("2+2?", "4", "4")
        await agent.close()


async def test_a_retry_quotes_only_the_last_unreadable_reply_shortened() -> None:
    async with endpoint("says " + "Hm. " * 500) as service:
        agent = judge(service, max_retries=2)
        with pytest.raises(AgentFailed) as caught:
            await agent.verdict("2+2?", "4", "4")
        await agent.close()
    assert len(str(caught.value)) < 3000
    assert [len(body["messages"]) for _, body in service.requests] == [1, 3, 3]
    assert len(service.requests[1][1]["messages"][1]["content"]) == 300
