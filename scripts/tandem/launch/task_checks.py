"""Checks before the start that samplers can play the run's tasks: scorers, judges, tools, sampler class, agents' file.

If the samplers run elsewhere (`num_samplers 0`), a missing part is only a warning: they may have it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from sampler.core.api_models.config import read_agents_config
from sampler.core.service.kinds import SamplerKinds
from sampler.core.service.tool_check import missing_tools
from sampler.core.tools import parse_servers
from sampler.core.tools.isolation import isolated
from sampler.settings import SamplerConfig
from shared.configuration.sections import settings_of
from shared.errors import ConfigError, TandemError
from shared.names import EVAL_SPLIT, TRAIN_SPLIT
from shared.store.questions import TaskDemand
from shared.tasks.checks import Samplers, TaskCheck
from shared.tasks.files import ImportTarget, check_playable
from shared.tasks.mix import check_mix
from shared.tasks.sampler_names import BUNDLED, EXTERNAL
from shared.user_code.loading import import_own
from tandem.launch.places import ROOT
from tandem.launch.rounds import payload_model
from tandem.launch.settings import LaunchConfig

Tell = Callable[[str], None]


def sampler_settings(config: LaunchConfig) -> SamplerConfig:
    """The settings of this launch's samplers. Raises ConfigError."""
    required = [f"--{name}=x" for name, setting in settings_of(SamplerConfig).items() if setting.required]
    context = ["--config", str(ROOT / config.config)] if config.config else []
    return SamplerConfig.load([*required, *context, *config.service_flags.get("sampler", [])])


def check_truncation(policies: Sequence[LaunchConfig]) -> None:
    """Raises ConfigError if an engine that is started here could not sample what training truncates."""
    if policies[0].only_evaluate:
        return
    truncation = sampler_settings(policies[0]).sampling.truncation
    for kind in [kind for policy in policies if policy.trains and policy.starts_engine for kind in policy.kinds]:
        if problem := truncation.engine_problem(kind):
            raise ConfigError(problem)


def check_tasks(config: LaunchConfig, show: Tell) -> list[TaskDemand]:
    """Read every task file of this launch; returns the demands on tools. Raises ConfigError for unplayable tasks."""
    settings = sampler_settings(config)
    check = TaskCheck(_samplers(config, settings, show))
    mix, model = config.mix(), payload_model(config)
    if mix is not None:
        splits = {EVAL_SPLIT} if config.only_evaluate else {EVAL_SPLIT, TRAIN_SPLIT}
        check_mix(mix, check, ROOT, splits)
    files: list[tuple[str, Path]] = [(EVAL_SPLIT, path) for path in config.eval_files]
    if not config.only_evaluate:
        files.append((TRAIN_SPLIT, config.train_file))
    for split, path in files:
        if mix is None or not mix.of_split(split):
            check_playable(ROOT / path, ImportTarget(split, payload_model=model, check=check))
    for text in check.counted_warnings:
        show(text)
    return check.demands


def _samplers(config: LaunchConfig, settings: SamplerConfig, show: Tell) -> Samplers:
    """What is known about the samplers after importing their code."""
    has_judge, model = False, ROOT / config.model
    try:
        for name in settings.scoring.scorer_modules:
            import_own("scorer_modules", name)
        kinds = SamplerKinds.of(settings)
        if settings.scoring.agent_config_path is not None:
            has_judge = read_agents_config(settings.scoring.agent_config_path).scorer_agent is not None
    except ConfigError as exc:
        if config.num_samplers:
            raise
        show(f"tasks are not checked against the samplers, which run elsewhere: {exc}")
        return Samplers(model=model)
    traits = kinds.traits()
    default, named = traits.pop(None), BUNDLED | {name: one for name, one in traits.items() if name is not None}
    if not config.num_samplers:
        return Samplers(has_judge=has_judge or None, default=default, named=named, model=model)
    return Samplers(
        knows_scorers=True,
        has_judge=has_judge,
        has_tools=bool(config.tools or settings.tools.mcp_manager_url),
        default=default,
        named=named,
        knows_samplers=True,
        lacking=kinds.lacking,
        elsewhere=EXTERNAL,
        default_scorers=_default_scorers(settings, has_judge=has_judge),
        model=model,
    )


def _default_scorers(settings: SamplerConfig, *, has_judge: bool) -> tuple[str, ...]:
    """Empty where feedback alone scores."""
    if settings.scoring.feedback_deadline_s and settings.scoring.feedback_missing == "abandon":
        return ()
    if settings.scoring.default_scorers:
        return tuple(one.name for one in settings.scoring.default_scorers)
    return (settings.scoring.default_scorer or ("agentcpm" if has_judge else "exact_match"),)


async def check_tools(config: LaunchConfig, tools_url: str | None, demands: Sequence[TaskDemand], show: Tell) -> None:
    """Check that the tool servers offer the tasks' tools. Raises ConfigError if they answer without them."""
    naming = [one for one in demands if one.tools or one.exclude_tools]
    if tools_url is None or not naming or not config.num_samplers:
        return
    settings = sampler_settings(config)
    try:
        servers = isolated(parse_servers(tools_url), settings.tools.tool_user, settings.tools.tool_sandbox)
        problems = await missing_tools(settings, servers, naming)
    except ConfigError:
        raise
    except TandemError as exc:
        show(f"the tasks' tools are not checked: {exc}")
        return
    if problems:
        raise ConfigError("\n".join(f"{count} tasks: {text}" for text, count in problems.items()))
