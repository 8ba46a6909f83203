"""Sections of settings: both spellings of a setting mean the same, in every source, and one name is one setting."""

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from sampler.settings import SamplerConfig
from shared.configuration.loading import ServiceConfig
from shared.configuration.sections import Section, flat_values, settings_of
from shared.errors import ConfigError
from shared.rules.episodes import EvalSampling
from trainer.settings.config import TrainerConfig
from trainer.sft.config import SftConfig


class Adapters(Section):
    """What is added."""

    switch: ClassVar = ("rank", 0)

    rank: int = Field(gt=0, description="How large.")
    alpha: float = Field(32.0, description="How strong.")


class Optimizer(Section):
    """How it learns."""

    rate: float = Field(0.1, gt=0, description="How fast.")
    kinds: list[str] = Field([], description="Which.")
    adapters: Adapters | None = None


class LearnerConfig(ServiceConfig):
    section: ClassVar[str] = "trainer"
    program: ClassVar[str] = "learner"

    steps: int = Field(1, description="How often.")
    optimizer: Optimizer = Optimizer()


def load(*argv: str) -> LearnerConfig:
    return LearnerConfig.load(list(argv))


def refused(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*argv)
    return str(caught.value)


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    return tmp_path / "run.yml"


@pytest.mark.parametrize("text", ["{rate: 0.5, rank: 4}", "{optimizer: {rate: 0.5, adapters: {rank: 4}}}"])
def test_a_file_may_name_the_section_or_leave_it_out(yaml: Path, text: str) -> None:
    yaml.write_text(f"trainer: {text}\n")
    config = load("--config", str(yaml))
    assert config.optimizer == Optimizer(rate=0.5, adapters=Adapters(rank=4))


def test_a_flag_and_a_variable_may_name_the_section_or_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load("--optimizer.rate", "0.5", "--optimizer.adapters.rank=4", "--optimizer.kinds", '["a", "b"]')
    assert whole.model_dump() == load("--rate=0.5", "--rank", "4", "--kinds", "a", "--kinds", "b").model_dump()
    monkeypatch.setenv("TANDEM_TRAINER_OPTIMIZER__RATE", "0.5")
    monkeypatch.setenv("TANDEM_TRAINER_KINDS", '["a", "b"]')
    monkeypatch.setenv("TANDEM_TRAINER_OPTIMIZER__ADAPTERS__RANK", "4")
    assert load().model_dump() == whole.model_dump()
    assert load("--rate", "0.7").optimizer.rate == 0.7


def test_a_flag_in_one_spelling_wins_over_a_file_in_the_other(yaml: Path) -> None:
    yaml.write_text("trainer: {optimizer: {rate: 0.5}}\n")
    assert load("--config", str(yaml), "--rate", "0.7").optimizer.rate == 0.7
    yaml.write_text("trainer: {rate: 0.5}\n")
    assert load("--config", str(yaml), "--optimizer.rate", "0.7").optimizer.rate == 0.7


def test_both_spellings_with_different_values_are_refused(yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "are one setting, with different values; expected one of them"
    assert refused("--rate", "1", "--optimizer.rate=2") == f"flags: --rate and --optimizer.rate {expected}"
    assert load("--rate", "2", "--optimizer.rate=2").optimizer.rate == 2
    yaml.write_text("trainer: {rate: 1, optimizer: {rate: 2}}\n")
    assert refused("--config", str(yaml)) == f"{yaml}:1: trainer: rate and optimizer.rate {expected}"
    monkeypatch.setenv("TANDEM_TRAINER_RATE", "1")
    monkeypatch.setenv("TANDEM_TRAINER_OPTIMIZER__RATE", "2")
    assert refused() == f"environment: rate and optimizer.rate {expected}"


def test_an_error_names_the_setting_as_it_was_written(yaml: Path) -> None:
    assert refused("--rate", "no").startswith("flags: rate is 'no'; ")
    assert refused("--optimizer.rate", "no").startswith("flags: optimizer.rate is 'no'; ")
    yaml.write_text("trainer: {optimizer: {rate: no way}}\n")
    assert refused("--config", str(yaml)).startswith(f"{yaml}:1: optimizer.rate is 'no way'; ")
    yaml.write_text("trainer: {optimizer: 5}\n")
    assert refused("--config", str(yaml)) == (
        f"{yaml}:1: trainer: optimizer: found int; expected settings and their values"
    )


def test_an_unknown_name_is_told_with_the_nearest_in_the_same_spelling(yaml: Path) -> None:
    assert refused("--rat", "1") == "--rat: unknown option 'rat'; did you mean rate?"
    assert "did you mean optimizer.rate or" in refused("--optimizer.rat", "1")
    yaml.write_text("trainer: {optimizer: {steps: 3}}\n")
    assert f"{yaml}:1: trainer: unknown key 'optimizer.steps'" in refused("--config", str(yaml))


def test_the_switch_turns_an_optional_section_on_and_off(yaml: Path) -> None:
    assert load().optimizer.adapters is None
    yaml.write_text("trainer: {optimizer: {adapters: {rank: 4, alpha: 8}}}\n")
    assert load("--config", str(yaml)).optimizer.adapters == Adapters(rank=4, alpha=8)
    off = load("--config", str(yaml), "--rank", "0")
    assert off.optimizer.adapters is None
    assert flat_values(off)["rank"] == 0
    assert "alpha" not in off.snapshot()
    yaml.write_text("trainer: {rank: 4, optimizer: {adapters: null}}\n")
    assert "rank and optimizer.adapters are one setting" in refused("--config", str(yaml))
    assert refused("--alpha", "8") == (
        "rank is missing, which alpha needs: give it as --rank, in the environment, or in the YAML file"
    )


def test_what_is_stored_has_the_plain_names_and_loads_again() -> None:
    stored = load("--rate", "0.5", "--rank", "4").snapshot()
    assert stored == {"config": None, "steps": 1, "rate": 0.5, "kinds": [], "rank": 4, "alpha": 32.0}
    assert LearnerConfig(**stored).snapshot() == stored


def test_one_name_is_one_setting() -> None:
    class Other(Section):
        rate: float = 1.0

    class Twice(LearnerConfig):
        other: Other = Other()

    with pytest.raises(TypeError, match=r"rate is in two sections, optimizer\.rate and other"):
        settings_of(Twice)
    for service in (TrainerConfig, SftConfig):
        assert settings_of(service)


def test_no_section_of_the_trainer_is_longer_than_a_person_can_hold_in_the_head() -> None:
    for service in (TrainerConfig, SftConfig):
        places = [setting.path[:-1] for setting in settings_of(service).values()]
        assert max(places.count(place) for place in places) <= 16


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--loss", "GRPO"], {}),
        (["--loss_calculater", "GRPO"], {}),
        (["--loss.loss", "GRPO"], {}),
        (["--loss.loss_calculater=GRPO"], {}),
        ([], {"TANDEM_TRAINER_LOSS": "GRPO"}),
        ([], {"TANDEM_TRAINER_LOSS_CALCULATER": "GRPO"}),
        ([], {"TANDEM_TRAINER_LOSS__LOSS": "GRPO"}),
    ],
)
def test_the_loss_has_its_name_and_its_alias_everywhere(
    flags: list[str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    required = ["--run", "r", "--db_connection_string", "x", "--model_name_or_path", "."]
    assert TrainerConfig.load([*required, *flags]).loss.loss == "GRPO"


@pytest.mark.parametrize(
    "text", ["{loss: GRPO}", "{loss_calculater: GRPO}", "{loss: {loss: GRPO}}", "{loss: {loss_calculater: GRPO}}"]
)
def test_the_loss_has_its_name_and_its_alias_in_yaml(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(f"trainer: {text}\n")
    required = ["--run", "r", "--db_connection_string", "x", "--model_name_or_path", "."]
    assert TrainerConfig.load([*required, "--config", str(tmp_path / "a.yml")]).loss.loss == "GRPO"


def test_a_name_and_its_alias_with_different_values_are_refused() -> None:
    required = ["--run", "r", "--db_connection_string", "x", "--model_name_or_path", "."]
    with pytest.raises(ConfigError, match="--loss and --loss_calculater are one setting, with different values"):
        TrainerConfig.load([*required, "--loss", "GRPO", "--loss_calculater", "GSPO"])


SAMPLER = ("--run=r", "--db_connection_string=mongodb://h", "--model_name_or_path=m")


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--group.advantage", "zscore"], "advantage", "zscore"),
        (["--eval_sampling.top_p", "0.5"], "eval_sampling", EvalSampling(top_p=0.5)),
        (["--sampling.eval_sampling.top_p=0.5"], "eval_sampling", EvalSampling(top_p=0.5)),
        (["--agent_isolation", "none"], "agent_command", None),
        (["--agent_command", "a", "--agent_isolation", "none"], "agent_command", "a"),
        (["--agents.command.agent_command=a", "--agent_isolation=process"], "agent_isolation", "process"),
    ],
    ids=str,
)
def test_a_samplers_settings_stand_in_sections(flags: list[str], name: str, value: object) -> None:
    assert flat_values(SamplerConfig.load([*SAMPLER, *flags]))[name] == value


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--agent_folder=x"], "agent_command is missing, which agent_folder needs"),
        (["--agent_command=a", "--agent_readable=/"], "agent_isolation is missing, which agent_readable needs"),
        (["--agent_isolation=process"], "agent_command is missing, which agent_isolation needs"),
        (["--eval_sampling.top_q", "1"], "--eval_sampling.top_q: unknown key 'top_q'; expected one of top_p, top_k"),
        (["--chat_template_kwargs.x", "1"], "expected --chat_template_kwargs VALUE, a mapping in JSON"),
        (["--budget.max_turns.x=1"], "budget.max_turns has no keys that are flags; expected --budget.max_turns VALUE$"),
        (["--queue.max_turns=1"], "unknown option 'queue.max_turns'"),
    ],
    ids=str,
)
def test_what_a_section_of_the_sampler_lacks_is_told_in_one_line(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        SamplerConfig.load([*SAMPLER, *flags])
    assert "usage:" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "off"),
    [
        (["--agent_command=a", "--agent_isolation=none", "--agent_readable=/"], {"agent_readable": "agent_isolation"}),
        (["--agent_command=none", "--agent_readable=/"], {"agent_readable": "agent_command"}),
        (["--agent_command=a", "--agent_isolation=process", "--agent_readable=/"], {}),
        (["--agent_isolation=none"], {}),
    ],
    ids=str,
)
def test_what_is_given_to_a_section_that_is_switched_off_is_told(flags: list[str], off: dict[str, str]) -> None:
    assert SamplerConfig.load([*SAMPLER, *flags]).switched_off() == off


def test_a_program_starts_and_says_what_its_switched_off_section_leaves_without_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    LearnerConfig.load_or_exit(["--rank=0", "--alpha=3"])
    assert capsys.readouterr().err == "learner: alpha has no effect: rank switches its section off\n"
