"""The engines' key: from the environment, by the name of its variable, and never stored or shown."""

import pytest

from sampler.engine.keeper.config import KeeperConfig
from sampler.settings import SamplerConfig
from shared.errors import ConfigError

GIVEN = ["--run", "r", "--db_connection_string", "mongodb://db", "--model_name_or_path", "/m"]
SERVICES = pytest.mark.parametrize("kind", [SamplerConfig, KeeperConfig])
Kind = type[SamplerConfig] | type[KeeperConfig]


@SERVICES
def test_the_key_comes_from_the_named_variable_and_is_not_stored_with_the_configuration(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kind.load(GIVEN).engines.engine_api_key is None
    monkeypatch.setenv("MY_ENGINES_KEY", "sk-very-secret")
    config = kind.load([*GIVEN, "--engine_api_key_var", "MY_ENGINES_KEY"])
    assert config.engines.engine_api_key == "sk-very-secret"
    assert config.snapshot()["engine_api_key_var"] == "MY_ENGINES_KEY"
    assert "sk-very-secret" not in repr(config) + str(config.snapshot())


def test_a_command_that_takes_a_key_needs_one() -> None:
    command = "engine --model {model} --port {port} --api-key {api_key}"
    with pytest.raises(ConfigError, match=r"has the placeholder \{api_key\}; expected engine_api_key_var"):
        KeeperConfig.load([*GIVEN, "--engine_command", command])


@SERVICES
@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("NOT_SET_HERE", "environment variable NOT_SET_HERE is not set"),
        ("EMPTY_HERE", "environment variable EMPTY_HERE is not set"),
        (
            "sk-very-secret",
            "engine_api_key_var is not a name of an environment variable; expected one like SGLANG_API_KEY",
        ),
    ],
)
def test_a_missing_variable_is_reported_and_a_key_in_its_place_is_not_shown(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, named: str, message: str
) -> None:
    monkeypatch.setenv("EMPTY_HERE", "")
    with pytest.raises(ConfigError) as caught:
        kind.load([*GIVEN, "--engine_api_key_var", named])
    assert message in str(caught.value)
    assert "very-secret" not in str(caught.value)
