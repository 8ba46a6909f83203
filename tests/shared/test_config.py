"""Configuration: flags over environment over YAML over defaults, and errors that name their source."""

import re
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import Field

from shared.configuration.loading import ServiceConfig
from shared.errors import ConfigError


class PlayerConfig(ServiceConfig):
    section: ClassVar[str] = "sampler"
    program: ClassVar[str] = "player"

    run_name: str = Field(description="Which run.")
    max_turns: int = Field(8, description="Replies per episode.")
    mode: Literal["fast", "slow"] = Field("fast", description="How.")
    names: dict[str, int] = Field({}, description="Who.")
    api_key: str | None = Field(None, description="For the judge.", json_schema_extra={"secret": True})


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    path = tmp_path / "run.yml"
    path.write_text("trainer: {max_steps: 3}\nsampler:\n  run_name: from-yaml\n  max_turns: 3\n")
    return path


def refused(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        PlayerConfig.load(list(argv))
    return str(caught.value)


def test_flags_override_the_environment_which_overrides_yaml_which_overrides_defaults(
    yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PlayerConfig.load(["--run_name", "r"]).max_turns == 8
    assert PlayerConfig.load(["--config", str(yaml)]).max_turns == 3
    monkeypatch.setenv("TANDEM_SAMPLER_MAX_TURNS", "4")
    assert PlayerConfig.load(["--config", str(yaml)]).max_turns == 4
    config = PlayerConfig.load(["--config", str(yaml), "--max_turns", "5"])
    assert (config.max_turns, config.run_name, config.mode) == (5, "from-yaml", "fast")


def test_the_file_itself_may_be_named_in_the_environment(yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_SAMPLER_CONFIG", str(yaml))
    assert PlayerConfig.load([]).run_name == "from-yaml"


def test_an_unknown_key_of_the_file_is_refused_by_name(yaml: Path) -> None:
    yaml.write_text("sampler: {run_name: r, max_turn: 3}\n")
    message = refused("--config", str(yaml))
    assert message.startswith(f"{yaml}:1: sampler: unknown key 'max_turn'; did you mean max_turns")
    assert "max_turns" in message


def test_an_unknown_section_of_the_file_is_refused_by_name(yaml: Path) -> None:
    yaml.write_text("smapler: {max_turns: 3}\n")
    assert f"{yaml}:1: unknown section 'smapler'; expected one of trainer" in refused("--config", str(yaml))


def test_keys_of_another_service_are_ignored(yaml: Path) -> None:
    yaml.write_text("trainer: {anything: 1}\nsampler: {run_name: r}\n")
    assert PlayerConfig.load(["--config", str(yaml)]).run_name == "r"


def test_an_unknown_variable_of_the_service_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TRAINER_MAX_TURN", "another service's")
    assert PlayerConfig.load(["--run_name", "r"]).max_turns == 8
    monkeypatch.setenv("TANDEM_SAMPLER_MAX_TURN", "3")
    message = refused("--run_name", "r")
    assert message.startswith("environment: unknown variable TANDEM_SAMPLER_MAX_TURN; sampler knows")
    assert "TANDEM_SAMPLER_MAX_TURNS" in message


def test_the_error_for_a_wrong_value_names_its_source(yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml.write_text("sampler: {run_name: r, max_turns: many}\n")
    assert refused("--config", str(yaml)).startswith(f"{yaml}:1: max_turns is 'many'; ")
    monkeypatch.setenv("TANDEM_SAMPLER_MAX_TURNS", "lots")
    assert refused("--config", str(yaml)).startswith("environment: max_turns is 'lots'; ")
    assert refused("--config", str(yaml), "--max_turns", "x").startswith("flags: max_turns is 'x'; ")


def test_all_wrong_values_are_reported_at_once(yaml: Path) -> None:
    yaml.write_text("sampler: {max_turns: many, mode: medium}\n")
    lines = refused("--config", str(yaml)).splitlines()
    assert [line.split(" is ")[0].removeprefix(f"{yaml}:1: ") for line in lines] == ["max_turns", "run_name", "mode"]


def test_a_value_that_should_be_json_and_is_not_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("--run_name", "r")
    assert re.fullmatch(r"flags: .*\bnames\b.*; expected JSON", refused(*given, "--names", '{"a"'))
    monkeypatch.setenv("TANDEM_SAMPLER_NAMES", "{")
    assert re.fullmatch(r'environment: .*"names".*; expected JSON', refused(*given))


def test_a_missing_value_says_how_to_give_it() -> None:
    assert refused() == "run_name is missing: give it as --run_name, in the environment, or in the YAML file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[1, 2]", "found list; expected sections"),
        (b"a: [", "not YAML"),
        (b"a: \xff", "byte 3 is not UTF-8"),
        (None, "cannot be read (No such file"),
    ],
)
def test_a_file_without_a_configuration_is_refused(tmp_path: Path, text: bytes | None, message: str) -> None:
    path = tmp_path / "c.yml"
    if text is not None:
        path.write_bytes(text)
    assert f"{path}: {message}" in refused("--config", str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sampler:\n  max_turns: 1\n  mode: slow\n  max_turns: 2\n", "4: 'max_turns' is given again, after line 2"),
        ("sampler: {mode: slow}\ntrainer: {}\nsampler: {max_turns: 1}\n", "3: 'sampler' is given again, after line 1"),
        ("sampler:\n  names: {a: 1, 'a': 2}\n", "2: 'a' is given again, after line 2; expected it once"),
        ("tasks:\n  sources:\n  - name: a\n    name: b\n", "4: 'name' is given again, after line 3"),
        ("sampler:\n  ? [a]\n  : 1\n  mode: slow\n  mode: slow\n", "5: 'mode' is given again, after line 4"),
    ],
)
def test_a_key_or_a_section_that_is_given_twice_is_refused_with_its_lines(yaml: Path, text: str, message: str) -> None:
    yaml.write_text(text)
    assert refused("--config", str(yaml)).startswith(f"{yaml}:{message}")


def test_values_of_an_anchor_may_be_overridden(yaml: Path) -> None:
    yaml.write_text(
        "trainer: &all\n  a: 1\nkeeper: &more\n  <<: *all\n  a: 2\n"
        "sampler:\n  run_name: r\n  names: {<<: *more, a: 3, b: 4}\n"
    )
    assert PlayerConfig.load(["--config", str(yaml)]).names == {"a": 3, "b": 4}


def test_a_date_is_text(yaml: Path) -> None:
    yaml.write_text("sampler: {run_name: 2026-02-30}\n")
    assert PlayerConfig.load(["--config", str(yaml)]).run_name == "2026-02-30"


def test_an_empty_file_and_an_empty_section_change_nothing(yaml: Path) -> None:
    for text in ("", "sampler:\n"):
        yaml.write_text(text)
        assert PlayerConfig.load(["--config", str(yaml), "--run_name", "r"]).max_turns == 8


def test_secrets_are_no_part_of_the_stored_configuration() -> None:
    config = PlayerConfig.load(["--run_name", "r", "--api_key", "s3cret"])
    assert config.api_key == "s3cret"
    assert config.snapshot() == {"config": None, "run_name": "r", "max_turns": 8, "mode": "fast", "names": {}}


def test_a_program_prints_the_error_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        PlayerConfig.load_or_exit([])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("player: run_name is missing")


def test_every_unknown_flag_is_refused_with_the_nearest_or_all_that_exist() -> None:
    assert refused("--max_turn", "3", "--nonsense", "1").splitlines() == [
        "--max_turn: unknown option 'max_turn'; did you mean max_turns?",
        "--nonsense: unknown option 'nonsense'; expected one of api_key, config, max_turns, mode, names, run_name",
    ]


def helped(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        PlayerConfig.load(argv)
    assert ended.value.code == status
    printed = capsys.readouterr()
    return printed.err if status else printed.out


@pytest.mark.parametrize(
    "argv", [["--help"], ["-h"], ["--max_turns", "3", "--help"], ["--help", "all"], ["--help", "general"]]
)
def test_help_shows_every_field_with_its_default(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    text = helped(capsys, *argv)
    assert text.startswith("general:" if argv[-1] == "general" else "usage: player ")
    for expected in ("--run_name", "--max_turns integer (default: 8)", "Replies per episode.", "fast, slow"):
        assert expected in text


def test_help_on_a_section_that_there_is_not_names_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert helped(capsys, "--help", "loss", status=2) == (
        "player: --help loss: no such section; expected one of general, all\n"
    )


def test_a_configuration_cannot_be_changed() -> None:
    config = PlayerConfig.load(["--run_name", "r"])
    with pytest.raises(ValueError, match="frozen"):
        config.max_turns = 3


def test_a_section_that_is_no_mapping_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "c.yml"
    path.write_text("sampler: [1]\n")
    assert "sampler: found list; expected keys and their values" in refused("--config", str(path))


class LearnerConfig(ServiceConfig):
    section: ClassVar[str] = "trainer"

    policy: str = Field("main", description="Whose.")
    max_steps: int = Field(1, description="Steps.")
    learning_rate: float = Field(0.1, description="Rate.")


@pytest.fixture
def several(tmp_path: Path) -> Path:
    path = tmp_path / "several.yml"
    path.write_text(
        "trainer: {max_steps: 3, learning_rate: 0.3}\n"
        "policies: {solver: {}, judge: {trainer: {max_steps: 5}, keeper: {capacity: 4}}}\n"
    )
    return path


def test_a_policys_values_override_shared_ones_and_flags_override_both(
    several: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps_and_rate(*argv: str) -> tuple[int, float]:
        config = LearnerConfig.load(["--config", str(several), *argv])
        return config.max_steps, config.learning_rate

    assert steps_and_rate("--policy", "solver") == (3, 0.3)
    assert steps_and_rate("--policy", "judge") == (5, 0.3)
    assert steps_and_rate("--policy", "judge", "--max_steps", "7") == (7, 0.3)
    monkeypatch.setenv("TANDEM_TRAINER_POLICY", "judge")
    assert steps_and_rate() == (5, 0.3)
    monkeypatch.setenv("TANDEM_TRAINER_MAX_STEPS", "6")
    assert steps_and_rate() == (6, 0.3)


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ("{solver: {}}", "policy is 'main'; expected one of its policies: solver"),
        ("{main: {trainer: {max_step: 5}}}", "policies.main: trainer: unknown key 'max_step'; did you mean max_steps"),
        ("{main: {sampler: {}}}", "policies.main: unknown section 'sampler'; expected one of trainer, keeper, launch"),
        ("[main]", "policies: found ['main']; expected names, each with its sections or {}"),
        ("{main: {trainer: {max_steps: many}}}", "1: max_steps is 'many'"),
    ],
)
def test_wrong_policies_are_refused_by_name(tmp_path: Path, policies: str, message: str) -> None:
    path = tmp_path / "c.yml"
    path.write_text(f"policies: {policies}\n")
    with pytest.raises(ConfigError) as caught:
        LearnerConfig.load(["--config", str(path)])
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_shared_service_needs_no_policy(several: Path) -> None:
    assert PlayerConfig.load(["--config", str(several), "--run_name", "r"]).max_turns == 8
