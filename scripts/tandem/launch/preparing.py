"""What a launch needs before it starts anything: enough open files, whole models, and the engine that is chosen."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from sampler.core.rendering.chosen_template import TemplateChoice
from shared.errors import ConfigError, TandemError
from shared.open_files import FEWEST, FEWEST_OF_DATABASE, require_files
from tandem.launch import commands
from tandem.launch.model_check import check_model, failures
from tandem.launch.places import EXAMPLE, ROOT
from tandem.launch.settings import LaunchConfig
from tandem.launch.task_checks import check_truncation, sampler_settings


def prepare(policies: Sequence[LaunchConfig]) -> None:
    """Raises ConfigError for too few open files or a model that cannot work, TandemError if the engine cannot be installed."""
    require_files(FEWEST if policies[0].db_connection_string else FEWEST_OF_DATABASE)
    for model in dict.fromkeys(policy.model for policy in policies):
        check_whole(ROOT / model, policies[0])
    check_truncation(policies)
    for kind in commands.CPU_ENGINES:
        if any(kind in policy.kinds and policy.starts_engine and not policy.placed for policy in policies):
            _install(kind)


def check_whole(model: Path, config: LaunchConfig) -> None:
    """Raises ConfigError with the rows of `tandem check-model` that failed. The bundled model is not checked again."""
    if model == ROOT / EXAMPLE / "model":
        return
    prompt = sampler_settings(config).prompt
    choice = TemplateChoice(prompt.chat_template, prompt.tool_call_parser, prompt.chat_template_kwargs)
    failed = failures(check_model(model, choice))
    if failed:
        lines = [f"{row.name}: {row.found}; expected {row.remedy or row.expected}" for row in failed]
        raise ConfigError("\n".join([f"{model} cannot be trained (`tandem check-model {model}`):", *lines]))


def _install(kind: str) -> None:
    """Install before anything is started, since the first time takes minutes; prints progress to the terminal."""
    status = subprocess.run(commands.install_engine(kind), stdin=subprocess.DEVNULL, check=False).returncode
    if status:
        raise TandemError(f"{kind} could not be installed (status {status}, see above); without it: --engine local")
