"""Any value of any setting of any service is taken, or refused in a sentence that names the field: never a traceback."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.engine.keeper.config import KeeperConfig
from sampler.settings import SamplerConfig
from shared.configuration.loading import ServiceConfig
from shared.configuration.secrets import SECRETS, is_secret_variable
from shared.configuration.sections import settings_of
from shared.errors import ConfigError
from shared.tasks.mix import TasksConfig
from tandem.launch.policies import load_policies
from tandem.launch.settings import LaunchConfig
from tandem.what_if.verify import VerifyConfig
from trainer.export import ExportConfig
from trainer.settings.config import TrainerConfig
from trainer.sft.config import SftConfig

ROOT = Path(__file__).parents[1]
SERVICES: tuple[type[ServiceConfig], ...] = (
    *(SamplerConfig, KeeperConfig, TrainerConfig, VerifyConfig, ExportConfig, SftConfig, LaunchConfig, TasksConfig),
)
FIELDS = [(kind, name) for kind in SERVICES for name in settings_of(kind) if name != "config"]
LOOP: list[Any] = []
LOOP.append(LOOP)
DEEP: Any = 1
for _ in range(200):
    DEEP = {"a": DEEP}

# What no field of any type may hold: no document, file name or clock could.
NEVER = [math.inf, -math.inf, math.nan, 10**400, 1e300 * 10**10, "a\0b", "\ud83d", DEEP, LOOP, ["\0"], {"k": math.nan}]
# What most fields refuse: the point is that none of them crashes.
ODD: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        0.5,
        1e300,
        2**63,
        "",
        " ",
        "../../x",
        "/etc/x",
        "a.b",
        "$a",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "9" * 5000,
    ),
    *(
        "x" * 5000,
        "/".join("x" * 300),
        "http://[",
        "http://h:99999",
        "{",
        "[[[[",
        [],
        {},
        [None],
        {"": ""},
        {"a": {}},
        b"\xff",
    ),
    *(
        yaml.safe_load("2026-01-01"),
        {1, 2},
        [[["a"]]],
        "module:Class",
        ":",
        "a:b:c",
        "mongodb://u:p/w@h",
        "\n",
        "é" * 300,
    ),
]


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda value: getattr(value, "section", value))
def test_a_wrong_value_is_refused_with_its_field_and_never_ends_in_a_traceback(
    kind: type[ServiceConfig], name: str
) -> None:
    for value in NEVER:
        with pytest.raises(ConfigError, match=rf"\b{name}\b"):
            _load(kind, {name: value})
    for value in ODD:
        _takes_or_refuses(kind, {name: value}, name)


WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150)
@given(data=st.data())
def test_several_wild_values_at_once_are_refused_or_taken(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(SERVICES))
    names = data.draw(st.lists(st.sampled_from([n for n in settings_of(kind) if n != "config"]), max_size=4))
    _takes_or_refuses(kind, {name: data.draw(WILD) for name in names})


@pytest.mark.parametrize("kind", SERVICES, ids=lambda kind: kind.section)
@pytest.mark.parametrize("text", ["nan", "1e400", "[" * 5000, "\udcff"], ids=["nan", "1e400", "deep", "no UTF-8"])
def test_flags_and_variables_of_any_text_are_refused(
    kind: type[ServiceConfig], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in settings_of(kind) if not (kind is LaunchConfig and name == "run")]
    first = ["demo"] if kind is LaunchConfig else []
    with pytest.raises((ConfigError, SystemExit)):
        kind.load([*first, *(f"--{name}={text}" for name in names)])
    for name in names:
        monkeypatch.setenv(f"TANDEM_{kind.section.upper()}_{name.upper()}", text)
    with pytest.raises(ConfigError):
        kind.load(first)


FILES = {
    "tags": b"trainer: !!python/object/apply:os.system [true]\n",
    "deep": b"trainer: " + b"[" * 20_000,
    "itself": b"trainer: &a {max_steps: *a}\n",
    "laughs": b"a: &a [x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 8)) for i in range(9)),
    "list": b"- 1\n",
    "no UTF-8": b"launch: {run: \xff}\n",
    "NUL": b"launch: {run: \0}\n",
    "policies": b"policies: {main: {launch: 5}}\n",
    "policies of numbers": b"policies: {1: {launch: {model: [}}}\n",
    "sections": b"trainer: 5\n",
    "no sections": b"launch: 0\ntrainer: ''\n",
    "max_steps": b"trainer: {max_steps: many}\n",
    "max_steps of a list": b"trainer: {max_steps: [1]}\n",
    "tasks": b"tasks: [1]\n",
    "sources": b"tasks: {sources: 3}\n",
    "cut": b"launch: {",
    "unhashable": b"? {a: 1}\n: 2\n",
    "merge": b"launch: {<<: 5}\n",
    "binary": b"launch: {model: !!binary aaa}\n",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_launchers_file_of_wrong_types_is_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.yml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_policies(["demo", "--config", str(path)])
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["x" * 300, "x/" * 3000, "\0", "\udcff", "/dev/null/x", "."])
def test_a_file_that_cannot_be_opened_is_refused_in_a_sentence(path: str) -> None:
    for kind in SERVICES:
        given = ["demo"] if kind is LaunchConfig else []
        with pytest.raises(ConfigError):
            kind.load([*given, "--config", path])


@pytest.mark.parametrize("module", ["sampler", "sampler.engine.keeper", "tandem.launch", "tandem"])
def test_a_program_says_it_in_a_line_and_exits_with_2(module: str) -> None:
    wrong = ["status", "../x"] if module == "tandem" else ["a.b"] if module == "tandem.launch" else ["--run", "../x"]
    more = [] if module in ("tandem", "tandem.launch") else ["--model_name_or_path", "m"]
    done = subprocess.run(
        [sys.executable, "-m", module, *wrong, *more],
        cwd=ROOT,
        env={**os.environ, "DB_CONNECTION_STRING": "mongodb://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "run name" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("kind", SERVICES, ids=lambda kind: kind.section)
def test_every_secret_field_is_known_to_those_who_keep_it_from_others(kind: type[ServiceConfig]) -> None:
    for name, setting in settings_of(kind).items():
        field = setting.field
        secret = isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("secret"))
        assert secret == (name in SECRETS)
        assert secret == (not field.repr)
        assert secret == is_secret_variable(f"TANDEM_{kind.section.upper()}_{name.upper()}")


def _takes_or_refuses(kind: type[ServiceConfig], values: dict[str, Any], named: str = "") -> None:
    refusal = ""
    try:
        _load(kind, values).snapshot()
    except ConfigError as exc:
        refusal = str(exc)
    assert "u:p" not in refusal
    assert len(refusal) < 1500 * max(len(values), 1)
    assert not refusal or named in refusal.lower()


def _load(kind: type[ServiceConfig], values: dict[str, Any]) -> ServiceConfig:
    """As if a YAML file held them; some are what no YAML can write."""
    required = {name: _placeholder(name) for name, setting in settings_of(kind).items() if setting.required}
    if kind is SftConfig and not {"run", "train_file"} & values.keys():
        required |= {"run": "demo", "db_connection_string": "mongodb://h"}
    return kind.from_sources({"my.yml": values, "flags": required})


def _placeholder(name: str) -> str:
    return "mongodb://h" if name == "db_connection_string" else "demo"
