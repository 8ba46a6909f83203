"""The tasks of the database: made from a seed, with answers that Python computes from the rows and no database.

Held-out tasks are of other tables, with other words and columns, than any training task.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

SPLITS = {"train": 2000, "heldout": 200}
Row = list[Any]


@dataclass(slots=True)
class Table:
    """`columns`: name and SQL type of each."""

    name: str
    columns: list[tuple[str, str]]
    rows: list[Row]

    @classmethod
    def of(cls, given: "Mapping[str, Any] | Table") -> "Table":
        if isinstance(given, Table):
            return given
        return cls(
            given["name"], [(name, kind) for name, kind in given["columns"]], [list(row) for row in given["rows"]]
        )

    def canonical(self) -> list[list[str]]:
        """Rows as texts that are the same in each database: 3, 3.0 and a Decimal of 3 are one value."""
        return sorted([_text(value) for value in row] for row in self.rows)


def _text(value: Any) -> str:
    if isinstance(value, int | float | Decimal):
        number = Decimal(value)  # True is 1
        return f"n{number.normalize() + 0}" if number.is_finite() else f"n{number}"
    return "null" if value is None else f"t{value}"


@dataclass(frozen=True, slots=True)
class Theme:
    """One table about things, each of a sort and at a place, and one of the places."""

    things: str
    who: str
    sort: str
    sorts: tuple[str, ...]
    count: str
    amount: str
    places: str
    town: str
    names: tuple[str, ...]


_TOWNS = ("Bergen", "Lyon", "Porto", "Graz", "Turku", "Ghent")
_NAMES = ("Ada", "Ben", "Cleo", "Dov", "Elif", "Finn", "Gita", "Hugo", "Ines", "Jun", "Kofi", "Lena", "Milo", "Nora")
_MORE = ("Omar", "Pia", "Quin", "Rosa", "Sven", "Tara", "Udo", "Vera", "Wim", "Xena", "Yuri", "Zoe", "Arne", "Bela")
_LAMPS = ("lamp", "chair", "desk", "shelf")
THEMES: Mapping[str, Sequence[Theme]] = {
    "train": (
        Theme("orders", "customer", "product", _LAMPS, "quantity", "price", "shops", "city", _NAMES),
        Theme(
            "loans",
            "reader",
            "genre",
            ("crime", "poetry", "history", "travel"),
            "days",
            "fee",
            "libraries",
            "town",
            _NAMES,
        ),
        Theme(
            "employees",
            "name",
            "role",
            ("clerk", "cook", "driver", "guard"),
            "years",
            "salary",
            "offices",
            "city",
            _NAMES,
        ),
        Theme(
            "flights",
            "pilot",
            "aircraft",
            ("jet", "glider", "turboprop", "airship"),
            "seats",
            "distance",
            "airports",
            "region",
            _NAMES,
        ),
    ),
    "heldout": (
        Theme(
            "treatments",
            "patient",
            "ward",
            ("dental", "cardiac", "general", "eye"),
            "visits",
            "cost",
            "clinics",
            "district",
            _MORE,
        ),
        Theme(
            "races",
            "runner",
            "category",
            ("trail", "sprint", "relay", "hurdles"),
            "laps",
            "seconds",
            "stadiums",
            "country",
            _MORE,
        ),
    ),
}


def task_of(split: str, seed: int) -> dict[str, Any]:
    """The task as `custom_task` has it."""
    drawn = random.Random(f"{split} {seed}")
    theme = drawn.choice(THEMES[split])
    places = Table(
        theme.places,
        [("id", "INTEGER"), (theme.town, "VARCHAR(40)")],
        [[k + 1, town] for k, town in enumerate(_TOWNS[:4])],
    )
    amounts = drawn.sample(range(10, 1000), 30)
    rows = [
        [
            k + 1,
            drawn.choice(theme.names),
            drawn.choice(theme.sorts),
            drawn.randint(1, 9),
            amounts[k],
            drawn.randint(1, 4),
        ]
        for k in range(drawn.randint(12, 30))
    ]
    columns = [
        ("id", "INTEGER"),
        (theme.who, "VARCHAR(40)"),
        (theme.sort, "VARCHAR(40)"),
        (theme.count, "INTEGER"),
        (theme.amount, "INTEGER"),
        (f"{theme.places}_id", "INTEGER"),
    ]
    tables = [Table(theme.things, columns, rows), places]
    drawn_task = drawn.choice(QUESTIONS)(theme, rows, drawn)
    if "rows" in drawn_task:
        drawn_task["after"] = [_plain(Table(theme.things, columns, drawn_task.pop("rows"))), _plain(places)]
    return {**drawn_task, "tables": [_plain(table) for table in tables]}


def _plain(table: Table) -> dict[str, Any]:
    return {"name": table.name, "columns": [list(one) for one in table.columns], "rows": table.rows}


WHO, SORT, COUNT, AMOUNT, PLACE = 1, 2, 3, 4, 5  # columns of the things


def _how_many(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    sort = drawn.choice(theme.sorts)
    count = sum(row[SORT] == sort for row in rows)
    return {"question": f"How many {theme.things} have the {theme.sort} {sort!r}?", "answer": [count]}


def _total(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    sort, least = drawn.choice(theme.sorts), drawn.randint(2, 6)
    amount = sum(row[AMOUNT] for row in rows if row[SORT] == sort and row[COUNT] >= least)
    text = f"What is the total {theme.amount} of {theme.things} with {theme.sort} {sort!r} and at least {least} {theme.count}?"
    return {"question": f"{text} If there are none, it is 0.", "answer": [amount]}


def _highest(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    top = max(rows, key=lambda row: row[AMOUNT])
    return {
        "question": f"Which {theme.who} has the {theme.things} entry of the highest {theme.amount}?",
        "answer": [top[WHO]],
    }


def _listed(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    least = drawn.choice(sorted(row[AMOUNT] for row in rows)[-5:])
    amounts = [row[AMOUNT] for row in rows if row[AMOUNT] >= least]
    return {"question": f"List each {theme.amount} in {theme.things} that is {least} or more.", "answer": amounts}


def _joined(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    place = drawn.randint(1, 4)
    total = sum(row[COUNT] for row in rows if row[PLACE] == place)
    text = f"What is the sum of {theme.count} over all {theme.things} at {theme.places} whose {theme.town} is"
    return {"question": f"{text} {_TOWNS[place - 1]!r}? If there are none, it is 0.", "answer": [total]}


def _most_common(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    counts = Counter(row[SORT] for row in rows)
    commonest = min(counts, key=lambda sort: (-counts[sort], sort))
    text = f"Which {theme.sort} do most {theme.things} have? Of several, the first by the alphabet."
    return {"question": text, "answer": [commonest]}


def _inserted(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    new = [
        len(rows) + 1,
        drawn.choice(theme.names),
        drawn.choice(theme.sorts),
        drawn.randint(1, 9),
        1234,
        drawn.randint(1, 4),
    ]
    values = f"id {new[0]}, {theme.who} {new[WHO]!r}, {theme.sort} {new[SORT]!r}, {theme.count} {new[COUNT]}"
    values += f", {theme.amount} {new[AMOUNT]}, {theme.places}_id {new[PLACE]}"
    return {"question": f"Insert a row into {theme.things}: {values}.", "rows": [*rows, new]}


def _updated(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    sort, more = drawn.choice(rows)[SORT], drawn.randint(2, 90)
    changed = copy.deepcopy(rows)
    for row in changed:
        row[AMOUNT] += more if row[SORT] == sort else 0
    return {
        "question": f"Raise {theme.amount} by {more} for all {theme.things} of {theme.sort} {sort!r}.",
        "rows": changed,
    }


def _deleted(theme: Theme, rows: list[Row], drawn: random.Random) -> dict[str, Any]:
    place, below = drawn.choice(rows)[PLACE], drawn.randint(4, 9)
    if not any(row[PLACE] == place and row[COUNT] < below for row in rows):
        below = 10  # above all counts: who does nothing must not be right
    remaining = [row for row in rows if not (row[PLACE] == place and row[COUNT] < below)]
    text = f"Delete all {theme.things} at {theme.places} whose {theme.town} is {_TOWNS[place - 1]!r}"
    return {"question": f"{text}, where {theme.count} is less than {below}.", "rows": remaining}


QUESTIONS: tuple[Callable[[Theme, list[Row], random.Random], dict[str, Any]], ...] = (
    _how_many,
    _total,
    _highest,
    _listed,
    _joined,
    _most_common,
    _inserted,
    _updated,
    _deleted,
)
