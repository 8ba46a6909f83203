"""What the description of a setting says holds: its special values, its choices, "None" and its bounds. Every claim of these
forms is read out of the descriptions; the table at the end has those in other words."""

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

from sampler.environments.config import EnvironmentsConfig
from sampler.mcp_docker.config import McpDockerConfig
from sampler.settings import SamplerConfig
from shared.configuration.loading import ServiceConfig
from shared.configuration.sections import flat_values, settings_of
from shared.errors import ConfigError
from tandem.launch.settings import LaunchConfig
from tests.test_written_settings import EVERY, required
from trainer.settings.config import TrainerConfig
from trainer.settings.presets import PRESETS

# "0: no clipping", "None: no limit"
SPECIAL = re.compile(r"(?:^|[.;,(] )(-?\d+|none|auto|null|None)(?: or (-?\d+))?(?::| means)")
LISTED = re.compile(r"(?:^|: )((?:[\w+.-]+, )*[\w+.-]+,? or [\w+.-]+)(?:[.:]|$)")  # "auto, cpu or cuda."
NEEDS: dict[str, dict[str, Any]] = {  # what else a special value needs
    "keep_best_checkpoints": {"eval_steps": 10},
}


def _claims(pattern: re.Pattern[str]) -> Iterator[tuple[type[ServiceConfig], str, list[str]]]:
    for kind in EVERY:
        for name, setting in settings_of(kind).items():
            found = [
                part for match in pattern.finditer(setting.field.description or "") for part in match.groups() if part
            ]
            if found:
                yield kind, name, found


SPECIALS = [(kind, name, value) for kind, name, values in _claims(SPECIAL) for value in values]


@pytest.mark.parametrize(("kind", "name", "value"), SPECIALS, ids=lambda value: getattr(value, "section", value))
def test_a_value_that_a_description_explains_is_taken(kind: type[ServiceConfig], name: str, value: str) -> None:
    found = _load(kind, {name: value, **NEEDS.get(name, {})})[name]
    if value in ("None", "null"):
        assert found is None
    elif re.fullmatch(r"-?\d+", value):
        assert found == int(value)
    else:
        assert found in (value, [value], None if value == "none" else value)


def test_every_setting_without_a_default_of_its_own_may_be_none_by_that_word() -> None:
    for kind in EVERY:
        for name, setting in settings_of(kind).items():
            if type(None) in get_args(setting.field.annotation) and not setting.optional and name != "config":
                for word in ("none", "None", "null"):
                    if name == "train_file" or (word == "none" and name == "report_to"):  # also a tracker's name
                        continue
                    assert _load(kind, {name: word})[name] is None, (kind, name, word)


CHOICES = [(kind, name, re.split(r", (?:or )?| or ", found[0].rstrip("."))) for kind, name, found in _claims(LISTED)]


@pytest.mark.parametrize(("kind", "name", "choices"), CHOICES, ids=lambda value: getattr(value, "section", str(value)))
def test_the_choices_that_a_description_lists_are_those_that_are_taken(
    kind: type[ServiceConfig], name: str, choices: list[str]
) -> None:
    for choice in choices:
        assert _load(kind, {name: choice})[name] == choice
    annotation: Any = settings_of(kind)[name].field.annotation
    members = get_args(annotation) if get_origin(annotation) is Literal else [one.value for one in annotation]
    assert set(choices) == set(members)
    assert _refused(kind, {name: "something else"})


TAKEN: list[tuple[type[ServiceConfig], dict[str, Any]]] = [
    *((TrainerConfig, {"preset": name}) for name in PRESETS if name not in ("sft",)),
    *((TrainerConfig, {"report_to": name}) for name in ("none", "tensorboard,wandb,swanlab,mlflow,trackio")),
    *((TrainerConfig, {"stale_data": name}) for name in ("keep", "wait", "mask", "drop")),
    *((TrainerConfig, {"advantage_normalization": name}) for name in ("none", "batch_std", "source")),
    *(
        (TrainerConfig, {"loss": name})
        for name in ("MINIRL", "GRPO", "GSPO", "GSPO-token", "CISPO", "REINFORCE", "DPPO")
    ),
    *((TrainerConfig, {"loss": name}) for name in ("SAPO", "ASPO")),
    (TrainerConfig, {"epsilon": "1"}),
    (TrainerConfig, {"lora_rank": 4, "lora_target_modules": "all-linear"}),
    (TrainerConfig, {"publish_mode": "adapter", "lora_rank": 4}),
    *((SamplerConfig, {"tool_call_parser": name}) for name in ("hermes", "qwen", "qwen25", "qwen3_coder", "mistral")),
    *(
        (SamplerConfig, {"tool_call_parser": name})
        for name in ("llama3", "deepseekv3", "pythonic", "kimi_k2", "glm45", "minicpm")
    ),
    *((SamplerConfig, {"new_context": name}) for name in ("disabled", "discard_all_tools", "discard_all")),
    (SamplerConfig, {"repetition_early_stop_times": -1}),
    (LaunchConfig, {"eval_file": ""}),
    (LaunchConfig, {"mcp_manager_url": "bundled"}),
]
REFUSED: list[tuple[type[ServiceConfig], dict[str, Any]]] = [
    (TrainerConfig, {"preset": "no"}),
    (TrainerConfig, {"report_to": "tensorbord"}),
    (TrainerConfig, {"epsilon": "1.01"}),
    (TrainerConfig, {"publish_mode": "adapter"}),
    (TrainerConfig, {"keep_best_checkpoints": 1, "eval_steps": 0}),
    (TrainerConfig, {"advantage_normalization": "batch"}),
    (SamplerConfig, {"tool_call_parser": "qwen2"}),
    (SamplerConfig, {"repetition_early_stop_times": -2}),
    (SamplerConfig, {"context_budget_tokens": 5}),
    (McpDockerConfig, {"host": "0.0.0.0"}),
    (EnvironmentsConfig, {"host": "0.0.0.0", "environments": "gymnasium:FrozenLake-v1"}),
]


@pytest.mark.parametrize(("kind", "values"), TAKEN, ids=str)
def test_what_a_description_offers_in_other_words_is_taken(kind: type[ServiceConfig], values: dict[str, Any]) -> None:
    _load(kind, values)


@pytest.mark.parametrize(("kind", "values"), REFUSED, ids=str)
def test_what_a_description_excludes_is_refused(kind: type[ServiceConfig], values: dict[str, Any]) -> None:
    assert next(iter(values)) in _refused(kind, values)


def _refused(kind: type[ServiceConfig], values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        _load(kind, values)
    return str(caught.value)


def _load(kind: type[ServiceConfig], values: dict[str, Any]) -> dict[str, Any]:
    name = next(iter(values))
    return flat_values(kind.from_sources({"given": values, "required": required(kind, name)}))
