"""Tables as task files: CSV, TSV, Parquet, JSON and JSONL, on disk or in a dataset of the Hugging Face Hub, become JSONL.

    columns of a row ──map──▶ fields of a task line ──take──▶ part of a text ──▶ one line

A path such as `reward_model.ground_truth` or `prompt.0.content` reaches into a column that holds an object or a list.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from shared.errors import ConfigError, DataError
from shared.files.hub import dataset_file
from shared.files.json_file import GivenTwice, load_json
from shared.files.written_file import written_whole
from shared.outside_values import MAX_DEPTH
from shared.tasks.exact_numbers import ExactFloat, in_shortest_digits, number_text
from shared.tasks.line_errors import TaskFileError
from shared.tasks.lines import FIELDS, MAX_LINE_BYTES, SAME, checked_lines
from shared.tasks.table_images import TableImages, check_images

HUB = "hub:"
TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (*TABLES, ".json", ".jsonl")
ROWS_AT_ONCE = 1_000
ROWS_WITH_BYTES_AT_ONCE = 16  # of a table with images
PLAIN = (str, int, float, bool, Decimal, date, time, type(None))
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mapped:
    """How a row becomes a task line. Columns that bear the name of a field need no mapping.

    `columns`: {field: column or path}. `take`: {field: regular expression}; the first group of the first match replaces the text.
    `metadata`: columns that are kept under "metadata".
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    take: Mapping[str, str] = field(default_factory=dict)
    metadata: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in (*self.columns, *self.take):
            if name not in FIELDS:
                raise ConfigError(f"{name!r} is no field of a task; expected one of {', '.join(FIELDS)}")
        for name, pattern in self.take.items():
            try:
                groups = re.compile(pattern).groups
            except re.error as exc:
                raise ConfigError(f"--take {name}={pattern}: no regular expression: {exc}") from exc
            if groups < 1:
                raise ConfigError(f"--take {name}={pattern}: expected a group in parentheses: the part to keep")


@dataclass(frozen=True, slots=True)
class Converted:
    tasks: int
    left_out: tuple[str, ...]  # columns of the first row that no field takes


def convert(source: str, target: Path, mapped: Mapped, progress: Callable[[int], None] | None = None) -> Converted:
    """Write `target` whole, or not at all, and check it as an import would. Images are files in a folder beside it.

    `progress` receives the number of rows. Raises ConfigError or DataError that name file, row and column.
    """
    if target.suffix in TABLES:
        raise ConfigError(f"{target}: expected a task file's name, such as {target.stem}.jsonl")
    path = dataset_file(source.removeprefix(HUB)) if source.startswith(HUB) else Path(source)
    unused: tuple[str, ...] = ()
    count = 0
    with TableImages(path, target) as images, written_whole(target) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            for count, row in enumerate(read_rows(path), start=1):
                if count == 1:
                    unused = tuple(sorted(set(row) - _used(row, mapped)))
                file.write(_text(_line(path, count, row, mapped, images)) + "\n")
                if progress and count % ROWS_AT_ONCE == 0:
                    progress(count)
        if not count:
            raise ConfigError(f"{path}: no row in it")
        try:
            check_images(temporary, checked_lines(temporary))
        except TaskFileError as exc:
            problems = "\n".join(f"{path}: row {error.number}: {error.text}" for error in exc.errors)
            raise ConfigError(
                f"{problems}\nMap columns by --map FIELD=COLUMN; those of the file: {_names(path)}"
            ) from exc
    return Converted(count, unused)


# ---------------------------------------------------------------------- rows


def read_rows(path: Path) -> Iterator[Row]:
    """Rows in order, as mappings from column to value. Raises ConfigError or DataError."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        if path.suffix in (".csv", ".tsv"):
            yield from _csv_rows(path)
        elif path.suffix == ".parquet":
            yield from _parquet_rows(path)
        else:
            yield from _json_rows(path)
    except UnicodeDecodeError as exc:
        raise DataError(f"{path}: byte {exc.start} is not UTF-8; expected a UTF-8 file") from exc
    except OSError as exc:
        raise DataError(f"{path}: cannot be read ({exc.strerror or exc})") from exc


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
        try:
            _check_once(path, reader.fieldnames or ())
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(
                        f"{path}:{reader.line_num}: expected {len(reader.fieldnames or ())} columns, as the first line"
                    )
                yield row
        except csv.Error as exc:
            raise DataError(f"{path}:{reader.line_num}: {exc}") from exc


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as exc:
        raise ConfigError(f"{path}: Parquet needs pyarrow; run pip install 'tandem-rl[data]'") from exc
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_once(path, file.schema_arrow.names)
            changes = ((column.name, in_shortest_digits(column.type)) for column in file.schema_arrow)
            changed = [(name, change) for name, change in changes if change is not None]
            has_bytes = any(_has_bytes(column.type) for column in file.schema_arrow)
            for batch in file.iter_batches(batch_size=ROWS_WITH_BYTES_AT_ONCE if has_bytes else ROWS_AT_ONCE):
                columns = [_python_values(path, name, batch[name]) for name in batch.schema.names]
                for values in zip(*columns, strict=True):
                    row = dict(zip(batch.schema.names, values, strict=True))
                    yield row | {name: change(row[name]) for name, change in changed}
    except pyarrow.ArrowException as exc:
        raise DataError(f"{path}: no Parquet file that can be read: {exc}") from exc


def _has_bytes(kind: Any) -> bool:
    """Whether values of an Arrow type have binary parts."""
    import pyarrow

    if pyarrow.types.is_nested(kind):
        return any(_has_bytes(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))


def _python_values(path: Path, name: str, column: Any) -> list[Any]:
    """The values of a column of Arrow. Times that Python cannot hold (nanoseconds, the year 10,000) are text, with all digits."""
    import pyarrow

    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, KeyError) as exc:  # KeyError: a time zone that this machine has not
        try:
            texts = column.cast(pyarrow.string()).to_pylist()
        except pyarrow.ArrowException:
            raise DataError(
                f"{path}: column {name!r}: {exc}; expected values that Python can hold; write them as text"
            ) from exc
    return [None if text is None else text.replace(" ", "T", 1) for text in texts]


def _check_once(path: Path, names: Sequence[str]) -> None:
    """Raises DataError where two columns have one name: the values of one would be lost."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: two columns are named {twice[0]!r}; expected each name once")


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        is_list = next((line.lstrip()[0] for line in file if line.strip()), "") == "["
        file.seek(0)
        if is_list:
            yield from _objects(path, enumerate(_loaded(path, 1, file.read()), start=1))
        else:
            lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            yield from _objects(path, ((number, _loaded(path, number, line)) for number, line in lines))


def _loaded(path: Path, number: int, text: str) -> Any:
    try:
        return load_json(text, parse_float=ExactFloat.of)
    except GivenTwice as exc:
        raise DataError(
            f"{path}:{number + exc.line - 1}: {exc.name!r} is given twice in one object; expected it once"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{path}:{number}: not JSON: {exc}") from exc


def _objects(path: Path, values: Iterator[tuple[int, Any]]) -> Iterator[Row]:
    for number, value in values:
        if not isinstance(value, dict):
            raise DataError(f"{path}: row {number}: expected an object with columns as keys")
        yield value


def _names(path: Path) -> str:
    return ", ".join(next(iter(read_rows(path)), {}))


# ---------------------------------------------------------------------- one row


def _line(path: Path, number: int, row: Row, mapped: Mapped, images: TableImages) -> dict[str, Any]:
    def plain(name: str, column: str, value: Any) -> Any:
        where = f"{path}: row {number}: column {column!r}"
        return _without_nan(path, number, column, images.of_field(name, value, where))

    read = {name: plain(name, column, row[column]) for name, column in _own_columns(path, row, mapped).items()}
    line = {name: value for name, value in read.items() if value not in (None, "")}
    for name, column in mapped.columns.items():
        line[name] = plain(name, column, _reached(path, number, row, column))
    for name, pattern in mapped.take.items():
        match = re.search(pattern, str(_number_texts(line.get(name, ""))))
        if match is None:
            raise DataError(
                f"{path}: row {number}: {name!r} holds nothing that fits {pattern!r}: {str(line.get(name))[:200]!r}"
            )
        line[name] = match.group(1).strip()
    line |= {name: _number_texts(line[name]) for name in ("id", "answer") if name in line}
    if mapped.metadata:
        line["metadata"] = {
            name: _without_nan(path, number, name, _reached(path, number, row, name)) for name in mapped.metadata
        }
    return {"id": f"{path.stem}-{number:06d}"} | line


def _own_columns(path: Path, row: Row, mapped: Mapped) -> dict[str, str]:
    """{field: the column that bears its name}. Raises DataError where two do and no mapping chooses."""
    own: dict[str, str] = {}
    for column in row:
        name = SAME.get(column, column)
        if name in own and name not in mapped.columns:
            raise DataError(
                f"{path}: columns {own[name]!r} and {column!r} mean the same; choose one by --map {name}=COLUMN"
            )
        if name in FIELDS:
            own[name] = column
    return own


def _number_texts(value: Any) -> Any:
    """Numbers with a fraction become texts, with all their digits."""
    if isinstance(value, list):
        return [_number_texts(one) for one in value]
    return number_text(value) if isinstance(value, float | Decimal) else value


def _without_nan(path: Path, number: int, column: str, value: Any, depth: int = 0) -> Any:
    """Null in place of each NaN, which tables write for a missing number. Raises DataError, which names the column, for
    infinities and for types that JSON has not."""
    where = f"{path}: row {number}: column {column!r}"
    if depth > MAX_DEPTH:
        raise DataError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list | tuple):
        return [_without_nan(path, number, column, one, depth + 1) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _without_nan(path, number, column, one, depth + 1) for name, one in value.items()}
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        if math.isnan(value):
            return None
        raise DataError(f"{where} is {value}; expected a finite number, text or nothing")
    if not isinstance(value, PLAIN):
        raise DataError(f"{where} has a {type(value).__name__}; expected texts, numbers, dates, lists and objects")
    return value


def _text(line: Mapping[str, Any]) -> str:
    """As JSON; dates in ISO 8601, decimal numbers as text."""
    return json.dumps(line, ensure_ascii=False, default=_plain)


def _plain(value: date | time | Decimal) -> str:
    return str(value) if isinstance(value, Decimal) else value.isoformat()


def _reached(path: Path, number: int, row: Row, column: str) -> Any:
    """The value of a column, or of a part of it. A column's own name may hold dots."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            raise DataError(f"{path}: row {number}: no {part!r} of {column!r}; its columns: {', '.join(map(str, row))}")
    return value


def _used(row: Row, mapped: Mapped) -> set[str]:
    own = {name for name in row if SAME.get(name, name) in FIELDS}
    return own | {
        column if column in row else column.split(".")[0] for column in (*mapped.columns.values(), *mapped.metadata)
    }
