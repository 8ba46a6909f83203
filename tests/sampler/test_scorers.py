"""Scores are numbers about answers; failures are never numbers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from bson import encode

from sampler.bundled_scorers.math_checker import MathChecker
from sampler.core.errors import ScorerFailed, UnusableTask
from sampler.core.scorers import registry
from sampler.scorers import Score, ScoringRequest, mathematics, register_scorer, score_answer, scorer_names, text
from shared.errors import ConfigError


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def math_process() -> AsyncIterator[None]:
    yield
    await mathematics._CHECKER.close()


def request(answer: str | None, *accepted: str) -> ScoringRequest:
    return ScoringRequest(answer=answer, accepted=accepted)


@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [(" The  Red\nHOUSE ", "the red house", 1), ("red house", "the red house", 0), ("ﬁve", "five", 1), ("ß", "SS", 1)],
)
async def test_exact_match_ignores_case_and_white_space_only(answer: str, accepted: str, value: float) -> None:
    assert (await score_answer("exact_match", request(answer, "zzz", accepted))).value == value


async def test_a_missing_answer_scores_zero_with_the_reason() -> None:
    details = {"scorer": "math", "extracted": None, "expected": ["5"], "reason": "no answer"}
    assert await score_answer("math", request(None, "5")) == Score(0.0, details)
    boxed = replace(request(None, "5"), payload={"answer_schema": "boxed"})
    reason = "no answer: the last reply has no \\boxed{…} with something in it"
    assert (await score_answer("math", boxed)).details["reason"] == reason


@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [("1,234", "1234", 1), ("0.50", "1/2", 1), ("$-7$", "-7", 1), ("7", "8", 0), ("+3", "3.0", 1), ("2/4", "1/2", 1)],
)
async def test_plain_numbers_are_compared_without_the_worker(answer: str, accepted: str, value: float) -> None:
    score = await score_answer("math", request(answer, accepted))
    assert (score.value, score.details["by"]) == (value, "number")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("math_process")
@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [
        (r"\frac{1}{2}", "0.5", 1),
        ("x^2 + 2x + 1", "(x+1)^2", 1),
        (r"\sqrt{8}", r"2\sqrt{2}", 1),
        ("x + 1", "x + 2", 0),
        (r"\{1, 2\}", r"\{2, 1\}", 1),
        ("blue", "5", 0),
        ("0.3333333 + 0", "1/3", 0),
        (r"\int_0^1 x dx", r"\frac{1}{2}", 1),
        (r"\int_0^1 x dx", r"\frac{1}{3}", 0),
    ],
)
async def test_expressions_are_compared_in_the_worker(answer: str, accepted: str, value: float) -> None:
    score = await score_answer("math", request(answer, accepted))
    assert (score.value, score.details["by"]) == (value, "reading")


async def test_an_answer_that_never_finishes_is_not_equal_and_the_next_one_is_judged() -> None:
    checker = MathChecker(cpu_s=1.0)
    equal, why = await checker.equal(r"9^{9^{9^{9}}}", [r"\frac{1}{2}+x"])
    assert not equal
    assert "not decided" in why or not why
    equal, why = await checker.equal(r"10^{10^{10}} \cdot 3^{10^{9}}", [r"3^{10^9} + 1"])
    assert not equal
    assert await checker.equal("x+x", ["2x"]) == (True, "")
    await checker.close()


async def test_concurrent_questions_get_their_own_answers() -> None:
    checker = MathChecker()
    answers = await asyncio.gather(*(checker.equal(f"x+{i}", ["x+3"]) for i in range(8)))
    assert [equal for equal, _ in answers] == [i == 3 for i in range(8)]
    await checker.close()


@pytest.mark.parametrize("kind", ["raises", "no number", "nan", "slow"])
async def test_a_scorer_that_fails_gives_no_score(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))

    @register_scorer("shaky", needs_answer=False)
    async def shaky(request: ScoringRequest) -> Score:
        if kind == "raises":
            raise KeyError("judge")
        await asyncio.sleep(10 if kind == "slow" else 0)
        return Score(float("nan")) if kind == "nan" else Score("5")  # type: ignore[arg-type]  # what is tested

    with pytest.raises(ScorerFailed, match="shaky"):
        await score_answer("shaky", request(None), timeout_s=0.2)


async def test_an_unknown_scorer_names_the_known_ones() -> None:
    assert {"exact_match", "math"} <= set(scorer_names())
    with pytest.raises(
        ConfigError, match="'maths' is unknown; expected one of agentcpm, asearcher, diversity, exact_match, f1"
    ):
        await score_answer("maths", request("5", "5"))


def test_a_name_is_registered_once() -> None:
    register_scorer("math")(mathematics.math_equal)
    with pytest.raises(ConfigError, match="twice"):
        register_scorer("math")(text.exact_match)


# ---------------------------------------------------------------------- why

LONG = "long " * 2_000
OUTCOMES = {  # of every scorer that needs no judge: the right answer, a wrong one, and what is said of them
    "exact_match": ("Paris", "Rome", "equals 'Paris'", "differs from 'Paris'"),
    "includes": ("in Paris", "Rome", "has the words 'Paris'", "lacks the words of 'Paris'"),
    "f1": (
        "Paris",
        "Rome now",
        "of its 1 words 1 are among the 1 of 'Paris'",
        "of its 2 words 0 are among the 1 of 'Paris'",
    ),
    "math": ("Paris", "Rome", "the same as 'Paris'", "not equal to 'Paris'"),
    "json_schema": ('{"n": 3}', "Rome", "satisfies the schema", "not JSON: Expecting value: line 1 column 1 (char 0)"),
}


def own_scorers() -> list[str]:
    """Those that come with this program."""
    return [
        name for name, known in registry._SCORERS.items() if known.home.__module__.startswith("sampler.bundled_scorers")
    ]


SQUAD = ("squad_f1", "squad_match")


def test_every_built_in_scorer_is_tested() -> None:
    """Those that ask a judge, or score groups, in test_judged_scores.py, test_judged_numbers.py and test_relative_scorers.py."""
    judged = {"agentcpm", "asearcher", "judge_rubric", "judge_score"}
    assert set(own_scorers()) == {*OUTCOMES, *judged, "diversity", "judge_pairs", "judge_rank", *SQUAD}


def asked(answer: str | None, *accepted: str) -> ScoringRequest:
    payload = {"answer_schema": "answer", "metadata": {"json_schema": SCHEMA}}
    return ScoringRequest(answer=answer, accepted=accepted, payload=payload)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("math_process")
@pytest.mark.parametrize("name", OUTCOMES)
async def test_a_score_names_its_scorer_the_found_and_expected_answers_and_the_reason(name: str) -> None:
    right, wrong, why, why_not = OUTCOMES[name]
    expected = "JSON that satisfies metadata.json_schema" if name == "json_schema" else ["Paris"]
    for answer, value, reason in ((right, 1.0, why), (wrong, 0.0, why_not)):
        score = await score_answer(name, asked(answer, "Paris"))
        facts = {"scorer": name, "extracted": answer, "expected": expected, "reason": reason}
        assert (score.value, score.details | facts) == (value, score.details), score
    missing = await score_answer(name, asked(None, "Paris"))
    assert (missing.value, missing.details["scorer"], missing.details["extracted"]) == (0.0, name, None)
    assert missing.details["reason"] == "no answer: the last reply has no <answer>…</answer> with something in it"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("math_process")
@pytest.mark.parametrize("name", OUTCOMES)
async def test_a_scores_details_are_bounded_for_any_answers(name: str) -> None:
    for answer in (LONG, "x \ud800", f'{{"{LONG}": 1, "\\ud800": 2}}'):
        score = await score_answer(name, asked(answer, *[f"{n} \udfff {LONG[:1000]}" for n in range(25)]))
        assert len(encode(dict(score.details))) < 20_000
        assert len(score.details["reason"]) <= 600
        if name != "json_schema":
            assert len(score.details["expected"]) == 21
            assert score.details["expected"][-1] == "… and 5 more"
    nothing = await score_answer(name, asked("Paris"))
    assert nothing.details["reason"], "a task without an answer"


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [
        ("It is Paris, of course.", "paris", 1),
        ("Parisian", "Paris", 0),
        ("The answer is 5.", "5", 1),
        ("15", "5", 0),
        ("5.2", "5", 0),
        ("1.5", "5", 0),
        ("1,500", "500", 0),
        ("-5", "5", 0),
        ("x = -5", "5", 0),
        ("x = -5", "-5", 1),
        ("pages 3-5", "5", 1),
        ("the  United\nStates", "united states", 1),
        ("答案是北京。", "北京", 1),
        ("a (b) c", "(b)", 1),
        ("no", "yes", 0),
        ("anything", " ", 0),
    ],
)
async def test_includes_matches_whole_words_and_whole_numbers(answer: str, accepted: str, value: float) -> None:
    assert (await score_answer("includes", request(answer, "zzz", accepted))).value == value


@pytest.mark.parametrize(
    ("answer", "accepted", "value"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1),
        ("the tower in Paris", "Eiffel Tower", 2 * 1 / (3 + 2)),
        ("cat cat dog", "cat dog dog", 2 * 2 / (3 + 3)),
        ("北京市", "北京", 2 * 2 / (3 + 2)),
        ("Rome", "Paris", 0),
        ("the", "a", 1),
        ("the", "Paris", 0),
    ],
)
async def test_f1_is_two_shared_words_over_all_words(answer: str, accepted: str, value: float) -> None:
    assert (await score_answer("f1", request(answer, "zzz", accepted))).value == pytest.approx(value)


# ---------------------------------------------------------------------- JSON

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}, "child": {"$ref": "#"}},
    "required": ["n"],
    "additionalProperties": False,
}


def json_request(answer: str, schema: object = SCHEMA) -> ScoringRequest:
    return ScoringRequest(answer=answer, accepted=(), payload={"metadata": {"json_schema": schema}})


@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ('{"n": 3}', 1, None),
        ('```json\n{"n": 3, "child": {"n": 1}}\n```', 1, None),
        ('{"n": 0}', 0, "$.n: 0 is less than the minimum of 1"),
        ('{"n": 1, "child": {}}', 0, "$.child: 'n' is a required property"),
        ('{"n": 1, "x": 1}', 0, "$: Additional properties"),
        ('{"n": 1', 0, "not JSON"),
        ('{"n": NaN}', 0, "NaN is no JSON number"),
        ("three", 0, "not JSON"),
        ("[" * 100_000, 0, "not JSON"),
        ('{"n": 1, "child": ' * 900 + '{"n": 1}' + "}" * 900, 0, "nested too deeply"),
    ],
)
async def test_json_schema_is_1_for_json_that_satisfies_the_tasks_schema(
    answer: str, value: float, reason: str | None
) -> None:
    score = await score_answer("json_schema", json_request(answer))
    assert score.value == value
    assert (reason or "") in score.details.get("reason", "")


@pytest.mark.parametrize("schema", [None, "x", {"type": "objekt"}, {"$ref": "http://127.0.0.1:1/schema.json"}])
async def test_a_missing_invalid_or_remote_schema_gives_no_score(schema: object) -> None:
    """Nothing is fetched: a task that refers to the network is wrong."""
    with pytest.raises(UnusableTask, match="json_schema"):
        await score_answer("json_schema", json_request("{}", schema))


@pytest.mark.parametrize(
    ("answer", "accepted", "exact", "f1"),
    [
        ("The Eiffel Tower.", ("eiffel tower",), 1.0, 1.0),
        ("  an  apple,\nred ", ("Apple red!",), 1.0, 1.0),
        ("U.S.", ("the US", "America"), 1.0, 1.0),
        ("in America", ("the US", "America"), 0.0, 2 / 3),
        ("Paris", ("London",), 0.0, 0.0),
        ("a", ("The",), 0.0, 0.0),
        ("The", ("the",), 1.0, 1.0),
        ("theater", ("ater",), 0.0, 0.0),
        ("!", ("?",), 0.0, 0.0),
        ("4", (), 0.0, 0.0),
    ],
)
async def test_squads_scores(answer: str, accepted: tuple[str, ...], exact: float, f1: float) -> None:
    """As `evaluate-v1.1.py`; unlike it, two texts of which nothing remains are not equal."""
    asked = ScoringRequest(answer=answer, accepted=accepted)
    assert (await score_answer("squad_match", asked)).value == exact
    assert (await score_answer("squad_f1", asked)).value == pytest.approx(f1)
