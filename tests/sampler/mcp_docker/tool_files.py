"""A corpus and a database for the tools that read them."""

import sqlite3
from pathlib import Path

from sampler.mcp_docker.tools import search


def corpus(folder: Path) -> Path:
    lines = folder / "corpus.jsonl"
    lines.write_text(
        '{"id": "a", "title": "Rivers", "text": "The Danube flows through ten countries."}\n'
        '{"id": "b", "title": "Lakes", "text": "Lake Baikal is the deepest; the Danube does not reach it."}\n'
    )
    assert search.index(folder / "corpus.sqlite", [lines]) == 2
    return folder / "corpus.sqlite"


def database(folder: Path) -> Path:
    path = folder / "data.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cities (name TEXT, people INT)")
        connection.executemany("INSERT INTO cities VALUES (?, ?)", [("Ulm", 126_000), ("Linz", 206_000)])
    connection.close()
    return path
