"""The agent config file: what it accepts, and that each error names the file, the line and the field, and never a key."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from sampler.core.api_models.config import JUDGE_PROMPT, BrowseAgentConfig, read_agents_config
from shared.errors import ConfigError

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "assets" / "agent_config_example.yml"
MODELS = "models: [{model: m, base_url: http://x/v1}]"


def read(folder: Path, text: str) -> str:
    """The error of a file, without its folder."""
    path = folder / "agents.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_agents_config(path)
    return str(caught.value).replace(f"{folder}/", "")


def test_the_example_loads_once_its_keys_are_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(
        ConfigError, match=r"agent_config_example.yml:\d+: browse_agent.models.0.api_key: .*OPENAI_API_KEY is not set"
    ):
        read_agents_config(EXAMPLE)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    config = read_agents_config(EXAMPLE)
    assert config.browse_agent is not None
    assert config.scorer_agent is not None
    assert config.browse_agent.min_prompt_length == 1500
    assert set(config.browse_agent.default_purpose) <= set(config.browse_agent.browse_tools)
    assert "{pred_answer}" in config.scorer_agent.judge_prompt_template
    key = config.scorer_agent.models[0].api_key
    assert key is not None
    assert key.get_secret_value() == "sk-1"
    assert list(config.players) == ["judge-api"]
    kept = config.snapshot()
    assert "sk-1" not in str(kept)
    assert kept["players"]["judge-api"]["models"][0]["model"] == "gpt-4o-mini"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("scorer_agent:\n  models:\n  - model: m\n    base_url: http://x\n  max_retry: 3\n",
         "agents.yml:5: scorer_agent.max_retry: unknown key; expected one of backoff_factor, breaker_failures"),
        (f"scorer_agent:\n  {MODELS}\n  extra_body: {{}}\n",
         "agents.yml:3: scorer_agent.extra_body: expected it in each entry of models"),
        ("browse_agent:\n  models:\n  - model: m\n    base_url: http://x\n    temprature: 0\n",
         "agents.yml:5: browse_agent.models.0.temprature: unknown key; expected one of api_key, base_url, extra_body"),
        ("scorer_agents: {}", "agents.yml:1: scorer_agents: unknown key; expected one of browse_agent, players, scorer_agent"),
        ("\nscorer_agent:\n  models: []", "agents.yml:3: scorer_agent.models: List should have at least 1 item"),
        ("scorer_agent:\n  max_retries: 1", "agents.yml:1: scorer_agent.models: is missing"),
        ("scorer_agent:\n  models:\n  - model: m\n    base_url: http://x:99999/v1",
         "agents.yml:4: scorer_agent.models.0.base_url: Port out of range"),
        (f"scorer_agent:\n  {MODELS}\n  judge_prompt_template: '{{pred_answer:d}} {{labeled_answer}}'",
         "agents.yml:3: scorer_agent.judge_prompt_template: a placeholder is a name alone, such as {question}"),
        ("scorer_agent:\n  models:\n  - base_url: http://x", "agents.yml:3: scorer_agent.models.0.model: is missing"),
        ("scorer_agent:\n  models:\n  - model: m\n    base_url: x.org/v1",
         "agents.yml:4: scorer_agent.models.0.base_url: expected http://… or https://…"),
        ("scorer_agent:\n  models:\n  - model: m\n    base_url: http://me:pw@x/v1",
         "agents.yml:4: scorer_agent.models.0.base_url: expected a URL without user name"),
        ("scorer_agent:\n  models:\n  - model: m\n    base_url: http://x\n    api_key: sk-literal",
         "agents.yml:5: scorer_agent.models.0.api_key: expected ${NAME}, the environment variable that holds the key"),
        ("scorer_agent:\n  models:\n  - model: m\n    base_url: http://x\n    api_key: ${NOT_SET_HERE}",
         "agents.yml:5: scorer_agent.models.0.api_key: ${NOT_SET_HERE}: environment variable NOT_SET_HERE is not set"),
        (f"scorer_agent:\n  timeout: soon\n  {MODELS}", "agents.yml:2: scorer_agent.timeout is 'soon'; expected a number"),
        (f"scorer_agent:\n  timeout: 0\n  {MODELS}", "agents.yml:2: scorer_agent.timeout: Input should be greater than 0"),
        (f"scorer_agent:\n  {MODELS}\n  judge_prompt_template: |\n    {{question}} {{answer}}",
         "agents.yml:3: scorer_agent.judge_prompt_template: placeholder {answer} is unknown; expected {question}"),
        (f"scorer_agent:\n  {MODELS}\n  judge_prompt_template: '{{labeled_answer}}'",
         "agents.yml:3: scorer_agent.judge_prompt_template: placeholder {pred_answer} is missing"),
        (f"scorer_agent:\n  {MODELS}\n  judge_prompt_template: 'a {{ b'",
         "agents.yml:3: scorer_agent.judge_prompt_template: expected '}' before end of string; a brace of the text itself"),
        (f"browse_agent:\n  {MODELS}\n  min_prompt_length: 9\n  max_prompt_length: 8",
         "agents.yml:1: browse_agent: min_prompt_length 9 is above max_prompt_length 8"),
        (f"browse_agent:\n  {MODELS}\n  browse_tools: [visit]\n  default_purpose: {{vist: x}}",
         "agents.yml:1: browse_agent: default_purpose names 'vist'; expected entries of browse_tools"),
        (f"browse_agent:\n  {MODELS}\n  timeout: 1\n  timeout: 2\n", "agents.yml:4: 'timeout' is given again, after line 3"),
        (f"scorer_agent: {{{MODELS}}}\nscorer_agent: {{{MODELS}}}", "agents.yml:2: 'scorer_agent' is given again"),
        (f"players:\n  api:\n    {MODELS}\n    max_retry: 1", "agents.yml:4: players.api.max_retry: unknown key"),
        ("players: {a.b: {models: []}}", "agents.yml:1: players.a.b"),
        ("scorer_agent: [", "agents.yml: not YAML"),
        ("- a", "agents.yml: expected browse_agent, scorer_agent, players, or several"),
        ("", "agents.yml: expected browse_agent, scorer_agent, players, or several"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_the_line_and_the_field(tmp_path: Path, text: str, error: str) -> None:
    assert read(tmp_path, text).startswith(error)


def test_keys_of_agentrl_files_without_effect_are_ignored_with_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "agents.yml"
    path.write_text(
        f"browse_agent:\n  {MODELS}\n  enable_logging: false\n  tokenizer_path: null\n"
        f"scorer_agent:\n  {MODELS}\n  tokenizer_path: /models/x\n"
    )
    config = read_agents_config(path)
    assert config.browse_agent is not None
    assert config.scorer_agent is not None
    assert [record.message.replace(f"{tmp_path}/", "") for record in caplog.records] == [
        "agents.yml:3: browse_agent.enable_logging is ignored: what agents did stands in the database",
        "agents.yml:4: browse_agent.tokenizer_path is ignored: lengths are counted in the tokens of the policy's model",
        "agents.yml:7: scorer_agent.tokenizer_path is ignored: lengths are counted in the tokens of the policy's model",
    ]
    path.write_text(f"scorer_agent:\n  {MODELS}\n  enable_loging: true\n")
    with pytest.raises(ConfigError, match=r"scorer_agent\.enable_loging: unknown key"):
        read_agents_config(path)


def test_lengths_of_prompts_may_be_equal(tmp_path: Path) -> None:
    path = tmp_path / "agents.yml"
    path.write_text(f"browse_agent:\n  {MODELS}\n  min_prompt_length: 8\n  max_prompt_length: 8")
    config = read_agents_config(path).browse_agent
    assert config is not None
    assert (config.min_prompt_length, config.max_prompt_length) == (8, 8)


def test_all_errors_are_reported_at_once_and_contain_no_key(tmp_path: Path) -> None:
    text = "scorer_agent:\n  models:\n  - model: m\n    base_url: http://x\n    api_key: sk-very-secret\n    max_tokens: 0\n"
    found = read(tmp_path, text)
    assert len(found.splitlines()) == 2
    assert "sk-very" not in found


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yml: cannot be read \(.*No such file"):
        read_agents_config(tmp_path / "none.yml")


def test_the_default_prompt_of_the_judge_has_its_placeholders() -> None:
    assert JUDGE_PROMPT.format(question="Q!", labeled_answer="L!", pred_answer="P!").count("!") == 3


def test_a_sampler_without_agents_does_not_import_the_client() -> None:
    imports = "import sampler.core.service.service, sampler.core.kinds.mcp_sampler, sys"
    code = f"{imports}; sys.exit('openai' in sys.modules or 'jsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("name", ["enabled", "status"])
def test_the_browse_agent_is_switched_off_by_its_setting_and_by_the_alias(name: str) -> None:
    models = [{"model": "m", "base_url": "http://x"}]
    assert BrowseAgentConfig.model_validate({"models": models}).enabled
    assert not BrowseAgentConfig.model_validate({"models": models, name: False}).enabled
    with pytest.raises(ValidationError, match="status"):
        BrowseAgentConfig.model_validate({"models": models, "enabled": True, "status": False})
