"""Fuzz every tool-call parser and every answer extractor: `python -m tests.sampler.fuzz_parsers --count 1000000`.

Each input goes to all of them. An input is a valid reply of one family, several families spliced, random unicode, or one piece
repeated thousands of times; then it is mutated: spans cut, doubled, moved, markers of any family put in, ends cut off. What is
checked for each answer:

  crash   anything raised
  hang    more CPU time than --limit-ms (a true hang ends the run with a traceback after --hard-limit-s)
  lost    a call was begun outside the reasoning, and there is neither a call nor an error for the model
  unfit   arguments, texts or errors that MongoDB or JSON would refuse

The seed is printed with the result; the same seed and count give the same inputs. Exit code 1 if anything was found.
"""

import argparse
import faulthandler
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import bson
from rich.console import Console
from rich.progress import track

from sampler.core.parsers import MAX_CALLS, PARSERS, ParsedReply
from sampler.core.parsers.reply import split_reasoning
from sampler.core.scorers.answers import ANSWER_SCHEMAS, extract_answer
from shared.processes.interrupt import run_command

TOOLS = [
    {
        "function": {
            "name": "look_up",
            "parameters": {
                "properties": {
                    "x": {"type": "string"},
                    "n": {"type": ["integer", "null"]},
                    "o": {"anyOf": [{"type": "object"}, {"enum": ["a"]}]},
                    "broken": 5,
                }
            },
        }
    }
]

VALID = (
    '<tool_call>\n{"name": "look_up", "arguments": {"x": "A", "n": 5}}\n</tool_call>',
    "<tool_call>\n<function=look_up>\n<parameter=x>\nA\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
    '[TOOL_CALLS][{"name": "look_up", "arguments": {"x": "A"}, "id": "aB3dE6gH9"}]',
    '[TOOL_CALLS]look_up[CALL_ID]aB3dE6gH9[ARGS]{"x": "A"}',
    '<|python_tag|>{"name": "look_up", "parameters": {"x": "A"}}; {"name": "b", "parameters": {}}',
    '{"name": "look_up", "parameters": {"o": {"a": [1, 2.5e3, null, true, "é\\u00e9\\ud83d\\ude42"]}}}',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n```json\n{"x": "A"}\n```<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>",
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{"x": "A"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    '[look_up(x=\'A\', n=-5), b(o={"a": [1, None, True, \'x\' "y"]}, s="""t\n""")]',
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>{"x": "A"}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "<tool_call>look_up\n<arg_key>x</arg_key>\n<arg_value>A</arg_value>\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
    '<|thought_start|>\nhm\n<|thought_end|>\n<|tool_call_start|>\n```python\nlook_up(x="A",n=5)\nb()\n```\n<|tool_call_end|>\n',
    "<think>\nLet me think.\n</think>\n\nIt is <answer>5</answer>, so \\boxed{\\frac{1}{2}} and \\fbox{x}.",
)
MARKERS = (
    "<tool_call>", "</tool_call>", "<function=", "<function=f>", "</function>", "<parameter=x>", "</parameter>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|tool_call_start|>", "<|python_tag|>", "<|python_start|>", "```json\n", "```python\n", "```",
    "<|thought_start|>", "<|thought_end|>", "<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "\\fbox {",
    "{", "}", "[", "]", "(", ")", '"', "'", '"""', "'''", "\\", "\\u", "\\ud800", "\\x", ",", ":", "=", ";", "-", "#",
    "\n", " ", "\t", "\0", "\u2028", "\ufeff", "\u202e", "é", "🙂", "\ud83d", "1e999", "9" * 30, "NaN", "null", "None",
    '{"name":', '{"name": "f"', "f(", "[f(", "f(x=",
)  # fmt: skip
# Text that begins a call, for those families where nothing else can be meant.
OPENINGS = {
    "hermes": "<tool_call>",
    "glm45": "<tool_call>",
    "qwen3_coder": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "llama3": "<|python_tag|>",
    "deepseekv3": "<｜tool▁call▁begin｜>",
    "kimi_k2": "<|tool_call_begin|>",
    "minicpm": "<|tool_call_start|>",
}


def random_text(rng: random.Random, most: int) -> str:
    planes = ((0x20, 0x7F), (0x00, 0x20), (0xA0, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000))
    return "".join(chr(rng.randrange(*planes[min(rng.randrange(12), 5)])) for _ in range(rng.randrange(most)))


def base(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.70:
        return rng.choice(VALID)
    if kind < 0.88:
        return rng.choice(("", " ", "\n", "and ")).join(rng.choices(VALID, k=rng.randrange(2, 5)))
    if kind < 0.94:
        return "".join(rng.choices(MARKERS, k=rng.randrange(1, 60)))
    return random_text(rng, 200)


def mutate(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(6)):
        a, b = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        b = min(b, a + 40)
        match rng.randrange(9):
            case 0:
                text = text[:a] + text[b:]
            case 1:
                text = text[:b] + text[a:]
            case 2 | 3:
                text = text[:a] + rng.choice(MARKERS) + text[a:]
            case 4:
                text = text[:a] + random_text(rng, 12) + text[a:]
            case 5:
                text = text[:a] if rng.random() < 0.7 else text[a:]
            case 6:
                text = text[:a] + text[a:b][::-1] + text[b:]
            case 7:
                c = rng.randrange(len(text) + 1)
                text = text[:c] + text[a:b] + text[c:]
            case _:
                text = text[:a] + text[a:b] * rng.randrange(2, 9) + text[b:]
    return text


def repeated(rng: random.Random) -> str:
    """The same piece, up to some ten thousand characters of it: what makes a careless parser quadratic."""
    piece = rng.choice(
        (rng.choice(MARKERS), rng.choice(VALID), "".join(rng.choices(MARKERS, k=2)), rng.choice(VALID)[:30])
    )
    piece = piece or "<"
    before = rng.choice(("", rng.choice(MARKERS), rng.choice(VALID)[:60]))
    return before + piece * rng.randrange(1, max(2, 20_000 // len(piece))) + rng.choice(("", rng.choice(MARKERS)))


def inputs(seed: int, count: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(count):
        yield repeated(rng) if rng.random() < 0.002 else mutate(rng, base(rng))


def check_parser(name: str, text: str, reply: ParsedReply) -> str:
    """The problem of an answer; empty if none."""
    if len(reply.tool_calls) + len(reply.errors) > MAX_CALLS + 1:
        return "unfit: too many calls"
    opening = OPENINGS.get(name)
    if (
        opening
        and not reply.tool_calls
        and not reply.errors
        and opening in split_reasoning(text)[1]
        and "thought" not in text
    ):
        return "lost"
    if reply.tool_calls:
        arguments = {str(i): {"name": c.name, "id": c.id, "a": c.arguments} for i, c in enumerate(reply.tool_calls)}
        try:
            bson.encode(arguments)
            json.dumps(arguments, allow_nan=False, ensure_ascii=False)
        except (ValueError, OverflowError, bson.errors.InvalidDocument) as exc:
            return f"unfit: {exc}"
    told = "".join([reply.content, reply.reasoning, *reply.errors])
    if has_surrogate(told) and not has_surrogate(text):
        return "unfit: half a character"
    return ""


def has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def targets() -> dict[str, Callable[[str], str]]:
    """By name: runs one input and returns the problem."""

    def parser(name: str) -> Callable[[str], str]:
        parse = PARSERS[name]
        return lambda text: check_parser(name, text, parse(text, TOOLS))

    def extractor(schema: str) -> Callable[[str], str]:
        return lambda text: "" if isinstance(extract_answer(text, schema), str | None) else "unfit: no text"

    distinct = {id(parse): name for name, parse in sorted(PARSERS.items(), reverse=True)}
    found = {name: parser(name) for name in sorted(distinct.values())}
    return found | {f"answer:{schema}": extractor(schema) for schema in ANSWER_SCHEMAS}


def fuzz(
    seed: int, count: int, limit_ms: float, hard_limit_s: float, texts: Iterator[str]
) -> tuple[Counter[str], list[str]]:
    """Findings by kind, and the first of each kind in words."""
    found: Counter[str] = Counter()
    shown: list[str] = []
    functions = targets()
    for text in texts:
        faulthandler.dump_traceback_later(hard_limit_s, exit=True)
        for name, run in functions.items():
            began = time.process_time()
            try:
                problem = run(text)
            except Exception as exc:  # noqa: BLE001 - any exception is a crash, which is what is looked for
                problem = f"crash: {type(exc).__name__}: {exc}"
            used_ms = 1000 * (time.process_time() - began)
            if used_ms > limit_ms:
                problem = f"hang: {used_ms:.0f} ms for {len(text)} characters"
            if problem:
                kind = problem.partition(":")[0]
                found[kind] += 1
                if found[kind] <= 5:
                    shown.append(f"{name}: {problem[:200]}\n    {text[:300]!a}")
        found["calls"] += len(functions)
    faulthandler.cancel_dump_traceback_later()
    return found, shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="inputs (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-ms", type=float, default=500.0, help="CPU time of one call (default %(default)s)")
    parser.add_argument("--hard-limit-s", type=float, default=60.0, help="one input, all parsers (default %(default)s)")
    args = parser.parse_args()
    console = Console(stderr=True)
    texts = track(inputs(args.seed, args.count), "fuzzing", total=args.count, console=console)
    began = time.monotonic()
    found, shown = fuzz(args.seed, args.count, args.limit_ms, args.hard_limit_s, iter(texts))
    seconds = time.monotonic() - began
    for line in shown:
        print(line)
    print(f"targets     {', '.join(targets())}")
    print(f"seed        {args.seed}")
    print(
        f"inputs      {args.count:,} in {seconds:.0f} s, {args.count / seconds:,.0f} inputs/s, {found['calls']:,} calls"
    )
    print("findings    " + ", ".join(f"{kind} {found[kind]}" for kind in ("crash", "hang", "lost", "unfit")))
    return 1 if any(found[kind] for kind in ("crash", "hang", "lost", "unfit")) else 0


if __name__ == "__main__":
    run_command(main)
