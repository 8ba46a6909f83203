"""Search over a local corpus, ranked by BM25 (SQLite's FTS5).

    python -m sampler.mcp_docker.tools.search index INDEX SOURCE...
    python -m sampler.mcp_docker.tools.search INDEX

The first writes an index of JSONL files ({"text": …, "id": …, "title": …}), text files and folders of them; the second is the
tool server, which only reads it.
"""

import json
import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sampler.mcp_docker.tools.serving import (
    BundledServer,
    BundledTool,
    ToolArguments,
    ToolRefusal,
    argument,
    run,
    server_of,
)

TEXT_SUFFIXES = {".txt", ".md", ".rst", ".html", ".tex", ".csv", ".json", ".py"}
MAX_READ_CHARS = 20_000
_SNIPPET_TOKENS = 40
_MAX_WORDS = 64

Row = tuple[str, str, str]  # id, title, text


class CorpusSearchArguments(ToolArguments):
    query: str = argument(description="words to be found", min_length=1, max_length=2_000)
    results: int = argument(5, description="how many", ge=1, le=50)


class CorpusReadArguments(ToolArguments):
    id: str = argument(description="a document's id, from a result of `search`")
    first_char: int = argument(0, description="character to begin with", ge=0)


class Corpus:
    """An index, opened read-only for each call: calls run in threads."""

    def __init__(self, index: Path) -> None:
        if not index.is_file():
            raise SystemExit(
                f"{index}: is no file; make it: python -m sampler.mcp_docker.tools.search index {index} SOURCE..."
            )
        self._uri = f"{index.resolve().as_uri()}?mode=ro&immutable=1"

    def search(self, arguments: CorpusSearchArguments) -> str:
        words = re.findall(r"\w+", arguments.query)[:_MAX_WORDS]
        if not words:
            raise ToolRefusal("the query has no words")
        rows = self._ranked(" AND ", words, arguments.results) or self._ranked(" OR ", words, arguments.results)
        return "\n\n".join(f"[{id}] {title}\n{snippet}" for id, title, snippet in rows) or "no document has these words"

    def read(self, arguments: CorpusReadArguments) -> str:
        rows = self._rows("SELECT id, title, text FROM documents WHERE id = ?", (arguments.id,))
        if not rows:
            raise ToolRefusal(f"there is no document {arguments.id!r}")
        _, title, text = rows[0]
        end = arguments.first_char + MAX_READ_CHARS
        rest = (
            f"\n[characters {arguments.first_char} to {min(end, len(text))} of {len(text)}]"
            if len(text) > MAX_READ_CHARS
            else ""
        )
        return f"{title}\n{text[arguments.first_char : end]}{rest}"

    def _ranked(self, between: str, words: Sequence[str], most: int) -> list[Row]:
        query = between.join(f'"{word}"' for word in words)  # quoted: no word is an operator
        snippet = f"snippet(documents, 2, '', '', ' … ', {_SNIPPET_TOKENS})"
        # A word in the title counts three times.
        statement = f"SELECT id, title, {snippet} FROM documents WHERE documents MATCH ?"
        return self._rows(f"{statement} ORDER BY bm25(documents, 0, 3, 1), rowid LIMIT ?", (query, most))

    def _rows(self, statement: str, values: tuple[object, ...]) -> list[Row]:
        connection = sqlite3.connect(self._uri, uri=True)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()


def index(target: Path, sources: Iterable[Path]) -> int:
    """Write a new index; the number of documents. Raises ValueError, with file and line."""
    target.unlink(missing_ok=True)
    connection = sqlite3.connect(target)
    try:
        words = "porter unicode61 remove_diacritics 2"
        connection.execute(
            f"CREATE VIRTUAL TABLE documents USING fts5(id UNINDEXED, title, text, tokenize = '{words}')"
        )
        rows = (row for source in sources for row in _documents(source))
        count = connection.executemany("INSERT INTO documents VALUES (?, ?, ?)", rows).rowcount
        connection.execute("INSERT INTO documents(documents) VALUES ('optimize')")
        connection.commit()
    finally:
        connection.close()
    return max(count, 0)


def _documents(source: Path) -> Iterator[Row]:
    if source.is_dir():
        for file in sorted(source.rglob("*")):
            if file.is_file() and file.suffix.lower() in TEXT_SUFFIXES:
                yield str(file.relative_to(source)), file.name, file.read_text(encoding="utf-8", errors="replace")
    elif source.suffix == ".jsonl":
        with source.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _document(line, source, number)
    elif source.is_file():
        yield source.name, source.name, source.read_text(encoding="utf-8", errors="replace")
    else:
        raise ValueError(f"{source}: is not there; expected a JSONL file, a text file or a folder")


def _document(line: str, source: Path, number: int) -> Row:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as exc:
        raise ValueError(f"{source}:{number}: is not JSON: {exc}") from exc
    text = entry.get("text", entry.get("contents")) if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise ValueError(f'{source}:{number}: expected an object with "text" (or "contents"), a string')
    title = str(entry.get("title", "")) or text.partition("\n")[0][:100]
    return str(entry.get("id", f"{source.stem}-{number}")), title, text


def tool_server(arguments: Sequence[str]) -> BundledServer:
    corpus = Corpus(Path(arguments[0] if arguments else "corpus.sqlite"))
    return server_of(
        "search",
        [
            BundledTool(
                "search",
                "Finds documents with the words of a query, the best first.",
                CorpusSearchArguments,
                corpus.search,
            ),
            BundledTool("read", "Reads a document that `search` found.", CorpusReadArguments, corpus.read),
        ],
    )


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["index"]:
        if len(arguments) < 3:
            raise SystemExit(__doc__)
        try:
            print(f"documents={index(Path(arguments[1]), map(Path, arguments[2:]))}")
        except ValueError as exc:
            raise SystemExit(str(exc)) from exc
    else:
        run(tool_server(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
