"""A setting means what it looks like, from a flag, a variable and a YAML file of every service: a value of its type that reads as
it was written, or a sentence of one line with the file, the line and the setting."""

import os
import re
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.settings import SamplerConfig
from scripts.settings_page import SERVICES as DOCUMENTED
from shared.configuration.loading import SECTIONS, ServiceConfig, read_section
from shared.configuration.sections import flat_values, settings_of
from shared.errors import ConfigError
from shared.files.yaml_file import Scalar, open_yaml_file
from tandem.launch.settings import LaunchConfig
from tandem.what_if.bisect import BisectConfig
from tandem.what_if.engine_replay import EngineReplayConfig
from tandem.what_if.replay import ReplayConfig
from trainer.settings.config import TrainerConfig
from trainer.sft.config import SftConfig

EVERY: tuple[type[ServiceConfig], ...] = (*DOCUMENTED, EngineReplayConfig, ReplayConfig, BisectConfig)
SERVICES = [kind for kind in EVERY if kind.section in SECTIONS]
FIELDS = [(kind, name) for kind in SERVICES for name in settings_of(kind) if name != "config"]
OF_A_KIND = list(
    {
        repr((setting.field.annotation, setting.field.metadata)): (kind, name)
        for kind, name, setting in ((kind, name, settings_of(kind)[name]) for kind, name in FIELDS)
    }.values()
)  # one setting of each type
TRAPS = (
    *("yes", "no", "on", "off", "Yes", "NO", "true", "False", "y", "n", "010", "-010", "0o10", "0x10", "0b1", "1:30"),
    *("1:30:00", "1_000", "1__0", "1e3", "1E-3", "+1", "1.", ".5", "1.0", "1.10", "-0", ".inf", ".nan", "nan", "inf"),
    *("1e400", "1e-400", "2026-01-01", "none", "None", "null", "~", "~/x", "~nobody_/x", "auto", "0", "1", "2", "-1", "7"),
    *("5", "70000", "9223372036854775808", "12345678901234567890123", "1,2", "a", "=", "<<", "1 2", "0.1 "),
)  # fmt: skip
TRUE, FALSE = ("true", "yes", "on", "1", "y", "t"), ("false", "no", "off", "0", "n", "f")
NONE = ("none", "None", "NONE", "null", "Null", "NULL", "~")


def test_every_scalar_of_yamls_own_reads_as_it_is_written_or_is_refused(tmp_path: Path) -> None:
    for kind, name in OF_A_KIND:
        for text in TRAPS:
            _check(kind, name, text, tmp_path)


SCALARS = st.one_of(
    st.sampled_from(TRAPS),
    st.text("0123456789+-._:eExoab", min_size=1, max_size=8),
    st.text("abcnofyetrul~.0_- é", min_size=1, max_size=8),
    st.floats(allow_nan=False).map(repr),
    st.integers().map(str),
)


@settings(max_examples=300)
@given(data=st.data())
def test_any_scalar_of_any_setting_reads_as_it_is_written_or_is_refused(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    kind, name = data.draw(st.sampled_from(FIELDS))
    _check(kind, name, data.draw(SCALARS), tmp_path_factory.getbasetemp(), every_way=True)


def _check(kind: type[ServiceConfig], name: str, text: str, folder: Path, *, every_way: bool = False) -> None:
    path = folder / "run.yml"
    path.write_text(f"# a comment\n{kind.section}:\n  {name}: {text}\n", encoding="utf-8")
    try:
        written = open_yaml_file(path).written[kind.section][name]
    except (ConfigError, KeyError, TypeError):
        return  # no scalar: the file says something else
    if not isinstance(written, Scalar) or not written.text:
        return
    of_file = _outcome(kind, lambda: {str(path): read_section(path, kind)}, name)
    _reads_back(kind, name, written.text, of_file, f"{path}:3: ")
    if (
        every_way and written.text not in NONE and not (kind is LaunchConfig and name == "run")
    ):  # `null` of YAML is no text
        _is_the_same_in_every_way(kind, name, written.text, of_file)


def _is_the_same_in_every_way(kind: type[ServiceConfig], name: str, text: str, of_file: list[Any] | str) -> None:
    first = ["demo"] if kind is LaunchConfig else []
    with mock.patch.dict(os.environ, {f"TANDEM_{kind.section.upper()}_{name.upper()}": text}):
        of_variable = _outcome(kind, lambda: {"environment": kind.given(first)}, name)
    of_flag = _outcome(kind, lambda: {"flags": kind.given([*first, f"--{name}={text}"])}, name)
    for other in (of_flag, of_variable):
        if isinstance(of_file, list):
            assert other == of_file, text
        else:
            assert isinstance(other, str), (text, other, of_file)


NEEDED = {
    "lora_rank": "8",
    "data_run": "other",
    "kl_coefficient": "1",
    "turn": "1",
    "agent_isolation": "process",
}  # required, or the switch of a section


def required(kind: type[ServiceConfig], name: str) -> dict[str, Any]:
    every = settings_of(kind)
    values = {one: NEEDED.get(one, "demo") for one, setting in every.items() if setting.required}
    place = every[name].path[:-1]  # an optional section needs its switch, and those around it theirs
    near = {one for one, other in every.items() if other.optional and other.path[:-1] == place[: len(other.path) - 1]}
    values |= {one: NEEDED.get(one, "demo") for one in near if every[one].field.is_required()}
    if "environments" in values:
        values["environments"] = "gymnasium:FrozenLake-v1"
    if "kl_coefficient" in near:
        values["drop_zero_advantage"] = "false"
    if kind is SftConfig and not {"run", "train_file"} & {*near, name}:
        values["train_file"] = "demo"
    if kind is SftConfig and name == "run":
        values["db_connection_string"] = "demo"
    values.pop(name, None)
    return values


def _outcome(kind: type[ServiceConfig], sources: Callable[[], dict[str, Any]], name: str) -> list[Any] | str:
    """[the value], or the message."""
    try:
        return [flat_values(kind.from_sources({**sources(), "required": required(kind, name)})).get(name)]
    except ConfigError as exc:
        return str(exc)


def _reads_back(kind: type[ServiceConfig], name: str, text: str, found: list[Any] | str, where: str) -> None:
    if isinstance(found, str):
        assert all(where in line for line in found.splitlines()), (kind, name, text, found)
        return
    value = found[0]
    match value:
        case None:
            assert text in NONE or _is_off(kind, name, text), text
        case bool():
            assert text.lower() in (TRUE if value else FALSE)
        case int() | float():
            assert Decimal(text.replace("_", "")) == Decimal(repr(value)) or float(text.replace("_", "")) == value
            assert not text.lstrip("+-").startswith("00")
        case Enum():
            assert text in (value.value, value.name)
        case Path():
            assert value == Path(text).expanduser()
        case list():
            parts = [part.strip() for part in text.split(",")]
            assert [str(one.value if isinstance(one, Enum) else one) for one in value] == [
                str(Path(part).expanduser()) if isinstance(value[0], Path) else part for part in parts
            ] or [float(part) for part in parts] == value
        case str():
            assert value in (text, text.upper())
        case _:
            raise AssertionError((text, value))


def _is_off(kind: type[ServiceConfig], name: str, text: str) -> bool:
    """The switch of a section: `lora_rank: 0`."""
    return settings_of(kind)[name].optional


REQUIRED = ["--run=r", "--db_connection_string=x", "--model_name_or_path=."]


def _load(kind: type[ServiceConfig], folder: Path, text: str, *flags: str, **variables: str) -> dict[str, Any]:
    (folder / "run.yml").write_text(text)
    with mock.patch.dict(os.environ, variables):
        return flat_values(kind.load([*REQUIRED, "--config", str(folder / "run.yml"), *flags]))


def _refusal(kind: type[ServiceConfig], folder: Path, text: str, *flags: str, **variables: str) -> str:
    with pytest.raises(ConfigError) as caught:
        _load(kind, folder, text, *flags, **variables)
    return str(caught.value).removeprefix(f"{folder / 'run.yml'}:")


def test_what_other_systems_read_otherwise(tmp_path: Path) -> None:
    for written, told in {
        "learning_rate: yes": "'yes' (a truth value in YAML 1.1); expected a number in decimal digits",
        "max_steps: true": "'true'; expected a whole number in decimal digits",
        "save_steps: on": "'on' (a truth value in YAML 1.1); expected a whole number",
        "max_steps: 010": "'010' (octal in YAML 1.1); expected a whole number",
        "max_steps: 1:30": "'1:30' (base 60 in YAML 1.1); expected a whole number",
    }.items():
        name = written.partition(":")[0]
        assert _refusal(TrainerConfig, tmp_path, f"trainer:\n  {written}\n").startswith(f"2: {name} is {told}")
    assert _refusal(TrainerConfig, tmp_path, "trainer: {preset: no}\n").startswith(
        "1: preset 'no' is unknown; expected"
    )
    assert _load(TrainerConfig, tmp_path, "trainer: {report_to: none}\n")["report_to"] == ["none"]
    assert _load(TrainerConfig, tmp_path, "", TANDEM_TRAINER_REPORT_TO="none")["report_to"] == ["none"]
    assert _load(TrainerConfig, tmp_path, "", "--report_to", "none")["report_to"] == ["none"]
    text = "sampler:\n  tool_sandbox: off\n  chat_template_kwargs: {a: 1e-3, b: false, c: x, d: '010'}\n"
    found = _load(SamplerConfig, tmp_path, text)
    assert found["tool_sandbox"] == "off"
    assert found["chat_template_kwargs"] == {"a": 1e-3, "b": False, "c": "x", "d": "010"}
    for trap in ("no", "010", "1:30", "1_000", "0x10"):
        told = _refusal(SamplerConfig, tmp_path, f"sampler:\n  chat_template_kwargs: {{a: [{trap}]}}\n")
        assert told.startswith(f"2: chat_template_kwargs.a.0 is {trap} (")


def test_truth_values_and_numbers_of_json_are_not_each_other(tmp_path: Path) -> None:
    assert "eval_sampling.top_k is true" in _refusal(SamplerConfig, tmp_path, "", """--eval_sampling={"top_k": true}""")
    told = _refusal(SamplerConfig, tmp_path, "", TANDEM_SAMPLER_DEFAULT_SCORERS='[{"name": "f1", "weight": true}]')
    assert told.startswith("environment: default_scorers.0.weight is true; expected a number")
    for value in (0, 1):
        assert _outcome(TrainerConfig, lambda: {"given": {"prefetch": value}}, "prefetch") == [bool(value)]  # noqa: B023
    for number in (1.0, 2, 0.5):
        assert "prefetch is" in str(_outcome(TrainerConfig, lambda: {"given": {"prefetch": number}}, "prefetch"))  # noqa: B023


def test_what_is_empty_is_not_given_in_every_way(tmp_path: Path) -> None:
    file = "trainer:\n  output_dir: x\n  max_steps: 7\n  lora:\n"
    for variables in ({}, {"TANDEM_TRAINER_OUTPUT_DIR": "", "TANDEM_TRAINER_MAX_STEPS": " "}):
        for flags in ([], ["--output_dir", "", "--max_steps="]):
            found = _load(TrainerConfig, tmp_path, file.replace("  lora:\n", ""), *flags, **variables)
            assert (found["output_dir"], found["max_steps"]) == (Path("x"), 7)
    found = _load(
        TrainerConfig, tmp_path, "trainer:\n  output_dir:\n  max_steps: ''\n  optimizer:\n  wait_for_tasks_s:\n"
    )
    assert (found["output_dir"], found["max_steps"], found["wait_for_tasks_s"]) == (None, 100, 10.0)
    assert (
        _refusal(TrainerConfig, tmp_path, "", "--max_steps")
        == "flags: --max_steps has no value; expected --max_steps VALUE"
    )
    assert _refusal(TrainerConfig, tmp_path, "", "--max_steps", "--seed=1").startswith(
        "flags: --max_steps has no value"
    )
    assert "gateway_token is empty" in _refusal(SamplerConfig, tmp_path, "", TANDEM_SAMPLER_GATEWAY_TOKEN="")


def test_a_tilde_is_the_home_folder_of_every_path_in_every_way(tmp_path: Path) -> None:
    home, count = Path.home() / "x", 0
    paths = [
        (kind, name) for kind, name in FIELDS if re.search(r"\bPath\b", repr(settings_of(kind)[name].field.annotation))
    ]
    for kind, name in paths:
        if name in ("other_policies", "environment_python", "agent_folder", "agent_readable"):  # need another setting
            continue
        for given_value in ("~/x", Scalar("~/x")):
            found = _outcome(kind, lambda: {"given": {name: given_value}}, name)  # noqa: B023 - used at once
            shown = str(found)
            assert str(home) in shown, (kind, name, found)
            assert "~" not in shown, (kind, name, found)
            count += 1
    assert count > 40
    assert "'~', in quotes" in _refusal(TrainerConfig, tmp_path, "trainer: {output_dir: ~}\n")
    assert _load(TrainerConfig, tmp_path, "trainer: {output_dir: '~'}\n")["output_dir"] == Path.home()
