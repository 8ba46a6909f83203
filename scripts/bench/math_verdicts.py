"""How the scorer `math` judges the pairs of `assets/math_verdicts.tsv`, beside three ways to use math-verify alone.

    python -m scripts.bench.math_verdicts            wrong verdicts by kind; --wrong prints each of ours
    python -m scripts.bench.math_verdicts --quick    one pair of each kind

ours      the scorer `math`, in its worker processes
plain     math-verify: parse of both texts
boxed     math-verify: both inside \\boxed{}
verl      as verl calls it: the accepted answer in \\boxed{}, LaTeX alone; the reply's also as a plain expression

`wrong 1`: called right, and is wrong. `wrong 0`: called wrong, and is right.
"""

import asyncio
import csv
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sampler.scorers import ScoringRequest, mathematics, score_answer
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark

CORPUS = Path(__file__).parents[2] / "assets" / "math_verdicts.tsv"
Judge = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Pair:
    """`verdict`: whether the answer is right, by mathematics."""

    answer: str
    accepted: str
    verdict: bool
    kind: str


def pairs(path: Path = CORPUS) -> list[Pair]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Pair(row["answer"], row["accepted"], row["verdict"] == "1", row["kind"]) for row in rows]


async def ours(pairs: Sequence[Pair]) -> list[bool]:
    """A pair that fails, as one whose accepted answer cannot be compared with, raises."""
    requests = [ScoringRequest(answer=pair.answer, accepted=(pair.accepted,)) for pair in pairs]
    try:
        return [
            one.value == 1 for one in await asyncio.gather(*(score_answer("math", request) for request in requests))
        ]
    finally:
        await mathematics._CHECKER.close()


def of_math_verify() -> dict[str, Judge]:
    from math_verify import parse, verify
    from math_verify.metric import math_metric
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

    by_verl = math_metric((LatexExtractionConfig(),), (ExprExtractionConfig(), LatexExtractionConfig()))

    def judged(judge: Judge) -> Judge:
        def safe(answer: str, accepted: str) -> bool:
            try:
                return bool(judge(answer, accepted))
            except Exception:  # noqa: BLE001 - what fails gives no reward, as its callers do it
                return False

        return safe

    return {
        "plain": judged(lambda answer, accepted: verify(parse(accepted), parse(answer))),
        "boxed": judged(lambda answer, accepted: verify(parse(_boxed(accepted)), parse(_boxed(answer)))),
        "verl": judged(lambda answer, accepted: by_verl([_boxed(accepted)], [_boxed(answer)])[0] == 1.0),
    }


def _boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"


def table(corpus: Sequence[Pair], verdicts: dict[str, list[bool]]) -> list[Row]:
    """A row by kind, and one of all."""
    rows = []
    for kind in [*dict.fromkeys(pair.kind for pair in corpus), "all"]:
        at = [k for k, pair in enumerate(corpus) if kind in (pair.kind, "all")]
        row: Row = {"kind": kind, "pairs": len(at)}
        for name, judged in verdicts.items():
            row[f"{name}: wrong 1"] = sum(judged[k] and not corpus[k].verdict for k in at)
            row[f"{name}: wrong 0"] = sum(not judged[k] and corpus[k].verdict for k in at)
        rows.append(row)
    return rows


def measure(options: Options) -> Tables:
    logging.disable(logging.CRITICAL)  # math-verify warns of what it cannot read
    corpus, numbers = [], Counter[str]()
    for pair in pairs(options.file):
        numbers[pair.kind] += 1
        if options.most is None or numbers[pair.kind] <= options.most:
            corpus.append(pair)
    verdicts = {"ours": asyncio.run(ours(corpus))}
    if not options.only_ours:
        for name, judge in of_math_verify().items():
            verdicts[name] = [judge(pair.answer, pair.accepted) for pair in corpus]
    if options.wrong:
        for pair, verdict in zip(corpus, verdicts["ours"], strict=True):
            if verdict != pair.verdict:
                print(f"{pair.kind}: {pair.answer!r} for {pair.accepted!r}: {verdict:d}, right is {pair.verdict:d}")
    return {"wrong verdicts": table(corpus, verdicts)}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--file", type=Path, default=CORPUS, help="other pairs, in the columns of the corpus")
    parser.add_argument("--only_ours", action="store_true", help="without math-verify alone, which takes a minute")
    parser.add_argument("--wrong", action="store_true", help="print each pair that ours judges wrongly")
    parser.add_argument("--most", type=int, help="pairs of each kind")
    run_benchmark(parser, measure, width=170, most=1)
