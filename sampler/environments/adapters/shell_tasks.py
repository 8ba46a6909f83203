"""The tasks of the shell: files made from a seed, with a question about them or a state to be reached.

The answers are Python's, from the files' texts. Held-out tasks ask for what no training task asks, of files with other names.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SPLITS = {"train": 2000, "heldout": 200}
Files = dict[str, str]
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty")
MORE = ("kiosk", "ledge", "mound", "notch", "orbit", "plank", "quill", "ridge", "spire", "trail")


def task_of(split: str, seed: int) -> dict[str, Any]:
    """The task as `custom_task` has it."""
    drawn = random.Random(f"{split} {seed}")
    return drawn.choice(QUESTIONS[split])(drawn)


def _tree(drawn: random.Random, words: Sequence[str], ends: Sequence[str]) -> Files:
    folders = ["", *(f"{word}/" for word in drawn.sample(words, 3))]
    names = {
        f"{drawn.choice(folders)}{drawn.choice(words)}{k}.{drawn.choice(ends)}" for k in range(drawn.randint(10, 20))
    }
    return {name: f"{drawn.choice(words)}\n" * drawn.randint(1, 9) for name in sorted(names)}


def _count(drawn: random.Random) -> dict[str, Any]:
    files = _tree(drawn, WORDS, ("txt", "log", "md"))
    end = drawn.choice(("txt", "log", "md"))
    count = sum(name.endswith(f".{end}") for name in files)
    return {
        "question": f"How many files here and in the folders below end in .{end}?",
        "files": files,
        "answer": [count],
    }


def _errors(drawn: random.Random) -> dict[str, Any]:
    lines = [f"{drawn.choice(WORDS)} {drawn.choice(('INFO', 'WARN', 'ERROR'))} {k}" for k in range(60)]
    who = drawn.choice(WORDS)
    count = sum(line.startswith(f"{who} ERROR") for line in lines)
    text = f"Each line of service.log has a service, a level and a number. How many lines of {who} are of level ERROR?"
    return {"question": text, "files": {"service.log": _lines(lines)}, "answer": [count]}


def _column(drawn: random.Random) -> dict[str, Any]:
    rows = [(drawn.choice(WORDS), drawn.randint(1, 99)) for _ in range(25)]
    who = drawn.choice(rows)[0]
    text = _lines(["name,amount", *(f"{name},{amount}" for name, amount in rows)])
    total = sum(amount for name, amount in rows if name == who)
    return {
        "question": f"What is the sum of the amounts of {who} in sales.csv?",
        "files": {"sales.csv": text},
        "answer": [total],
    }


def _moved(drawn: random.Random) -> dict[str, Any]:
    files = _tree(drawn, WORDS, ("txt", "tmp"))
    flat = {name.rpartition("/")[2]: text for name, text in files.items()} | {"last.tmp": "x\n"}
    check = [f"test ! -e {name} && test -f trash/{name}" for name in flat if name.endswith(".tmp")]
    check += [f"test -f {name}" for name in flat if name.endswith(".txt")]
    instruction = (
        "Make a folder named trash, and move all files that end in .tmp into it. Leave the other files where they are."
    )
    return {"question": instruction, "files": flat, "check": " && ".join(check)}


def _replaced(drawn: random.Random) -> dict[str, Any]:
    old, new = drawn.sample(WORDS, 2)
    lines = [f"{drawn.choice([old, *WORDS])} = {drawn.randint(1, 99)}" for _ in range(12)] + [f"{old} = 0"]
    files = {"app.conf": _lines(lines), "old.conf": _lines(lines)}
    expected = _lines([line.replace(old, new) for line in lines])
    text = f"Replace {old} by {new} everywhere in app.conf. Do not change old.conf."
    return {
        "question": text,
        "files": files,
        "check": f"{_is('app.conf', expected)} && {_is('old.conf', files['old.conf'])}",
    }


def _sorted(drawn: random.Random) -> dict[str, Any]:
    lines = [drawn.choice(WORDS) for _ in range(20)]
    check = _is("unique.txt", _lines(sorted(set(lines))))
    text = "Write the different lines of words.txt, sorted, to unique.txt."
    return {"question": text, "files": {"words.txt": _lines(lines)}, "check": check}


def _largest(drawn: random.Random) -> dict[str, Any]:
    sizes = drawn.sample(range(10, 5000), 8)
    files = {f"{word}.dat": "x" * size for word, size in zip(MORE, sizes, strict=False)}
    biggest = max(files, key=lambda name: len(files[name]))
    return {"question": "What is the name of the largest file here?", "files": files, "answer": [biggest]}


def _visitors(drawn: random.Random) -> dict[str, Any]:
    visits = [f"10.0.0.{drawn.randint(1, 6)} /{drawn.choice(MORE)}" for _ in range(50)]
    counts = Counter(line.split()[0] for line in visits)
    busiest = min(counts, key=lambda address: (-counts[address], int(address.rpartition(".")[2])))
    text = "Which address has the most lines in access.log? Of several, the one with the smallest last number."
    return {"question": text, "files": {"access.log": _lines(visits)}, "answer": [busiest]}


def _executable(drawn: random.Random) -> dict[str, Any]:
    files = {name.rpartition("/")[2]: "#!/bin/sh\n" for name in _tree(drawn, MORE, ("sh", "rst"))} | {
        "run.sh": "#!/bin/sh\n"
    }
    check = " && ".join(f"test {'' if name.endswith('.sh') else '! '}-x {name}" for name in files)
    text = "Let all files that end in .sh be executed by their owner, and no other file."
    return {"question": text, "files": files, "check": check}


def _renamed(drawn: random.Random) -> dict[str, Any]:
    files = {f"{word}.jpeg": f"{word}\n" for word in drawn.sample(MORE, 5)} | {"notes.rst": "n\n"}
    names = sorted(name.replace(".jpeg", ".jpg") for name in files)
    check = f'test "$(LC_ALL=C ls)" = "{chr(10).join(names)}"'
    return {
        "question": "Rename every file that ends in .jpeg, so that it ends in .jpg.",
        "files": files,
        "check": check,
    }


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _is(name: str, text: str) -> str:
    """A condition of the shell; the texts have no quotes and no signs that it reads."""
    return f"test \"$(cat {name}; echo .)\" = '{text}.'"


QUESTIONS: Mapping[str, Sequence[Callable[[random.Random], dict[str, Any]]]] = {
    "train": (_count, _errors, _column, _moved, _replaced, _sorted),
    "heldout": (_largest, _visitors, _executable, _renamed),
}
