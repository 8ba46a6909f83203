"""`tandem resettle RUN --as RUN2`: the played groups of a run, scored anew from their stored conversations, and settled anew.

    RUN (read only) ─▶ each played group ─▶ scorers on the stored conversations ─▶ RUN2: completed groups ─▶ settlement as ever

    python -m tandem.what_if.resettle --run RUN --target RUN2 --advantage zscore       DB_CONNECTION_STRING in the environment

Rules of settlement that are not given are those of each group in RUN, other settings those that RUN's samplers had. Tokens,
log-probs and versions are copied bit for bit, ids are those of RUN. A group is written with its task last, and what is written
never changes: an interrupted call is continued by the same call, with the same scores even if a judge would now say something
else. RUN2 remembers its settings, and refuses others.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError
from rich.console import Console
from rich.progress import Progress

from sampler.core.api_models import Agents, Judge
from sampler.core.api_models.config import read_agents_config
from sampler.core.api_models.images import ReadImage
from sampler.core.errors import AgentFailed, ScorerFailed
from sampler.core.scorers.registry import require_scorer
from sampler.core.service.process import load_scorers
from sampler.core.settlement.declared_rules import declared
from sampler.core.settlement.group_scoring import GroupScoring
from sampler.core.settlement.settle import claim_next, settle
from sampler.settings import SamplerConfig
from shared.configuration.given import given_settings
from shared.configuration.loading import read_section
from shared.documents import Task
from shared.documents.rules import FIRST, RunRules
from shared.documents.scoring import MAX_SCORERS, WeightedScorer
from shared.errors import ConfigError, DataError, TandemError
from shared.names import DEFAULT_POLICY, RunName
from shared.outside_text import visible
from shared.rules.run_rules import RULE_NAMES, Rules
from shared.store import Store
from shared.store.expert_copies import copy_experts, expert_chunks_of
from shared.store.image_copies import copy_images, images_of
from shared.user_code.frames import cause_of
from tandem.what_if.rescored import rescored, unsettled, unsettled_task
from tandem.what_if.resettled import Resettled, print_outcome

SETTINGS = "resettle"  # the name of its settings in RUN2's document
OF_SAMPLERS = ("scorer_modules", "agent_config_path", "policy", "frozen_policies", "other_policies", "max_failures")
GROUPS_AT_ONCE = 8
WAIT_S = 1.0


class ResettleConfig(SamplerConfig):
    """Scores and settles the played groups of a run anew, into another run."""

    program: ClassVar[str] = "python -m tandem.what_if.resettle"

    target: RunName = Field(description="The new run, on the same server.")
    model_name_or_path: Path = Field(Path(), description="Not used: nothing is sampled.")
    new_scorers: list[WeightedScorer] = Field(
        [], max_length=MAX_SCORERS, description="Scorers in place of the tasks' own."
    )
    rescore: bool = Field(False, description="Ask the tasks' own scorers again.")

    @property
    def scores_anew(self) -> bool:
        return self.rescore or bool(self.new_scorers)


async def resettle(uri: str, given: dict[str, Any], progress: Progress) -> Resettled:
    """`given`: settings of the command. Raises ConfigError and DataError."""
    run = given.get("run", "")
    async with Store.open(uri, run, read_only=True) as source:
        config = await _config(source, given)
        if config.target == run:
            raise ConfigError(f"--as names run {run} itself, which stays as it is; choose another name")
        if not await source.resettling.played(config.policy):
            raise ConfigError(
                f"run {run} has no played group of policy {config.policy}: there is nothing to settle anew"
            )
        load_scorers(config)
        agents = _agents(config.scoring.agent_config_path, source.images.read)
        try:
            for one in config.new_scorers:
                require_scorer(one.name, agents.judge)
            async with Store.open(uri, config.target) as target:
                await _claim_name(target, config)
                await _copy_rules(source, target, config)
                outcome = Resettled(run, config.target)
                await _copy(source, target, config, agents, outcome, progress)
                await _settle_all(target, config, agents, outcome, progress)
                await _measure(source, target, config, outcome)
                return outcome
        finally:
            await agents.close()


def _agents(path: Path | None, read_image: ReadImage) -> Agents:
    """The judge alone: nothing is played."""
    configured = None if path is None else read_agents_config(path).scorer_agent
    return Agents(judge=None if configured is None else Judge(configured, read_image))


async def _config(source: Store, given: dict[str, Any]) -> ResettleConfig:
    """Flags over the YAML file over the run's newest rules and what its samplers had."""
    run = await source.runs.read()
    settings = (await source.settings.last(run)).get("sampler", {})
    had = {name: settings[name] for name in OF_SAMPLERS if name in settings}
    sources = {"flags": given}
    if given.get("config"):
        sources[str(given["config"])] = read_section(Path(given["config"]), ResettleConfig)
    policy = next(
        (str(one["policy"]) for one in sources.values() if "policy" in one), had.get("policy", DEFAULT_POLICY)
    )
    newest = next(iter(await source.rules.all(policy)), None)
    ruled = {} if newest is None else {name: value for name, value in newest.values.items() if name in RULE_NAMES}
    return ResettleConfig.from_sources({**sources, _of_samplers(source): {**had, **ruled}})


def _of_samplers(source: Store) -> str:
    return f"the samplers of run {source.run}"


async def _claim_name(target: Store, config: ResettleConfig) -> None:
    """Raises ConfigError where the name belongs to something else."""
    expected = {name: value for name, value in config.snapshot().items() if name not in ("config", "log_level")}
    if SETTINGS not in (await target.runs.read()).settings:
        # Its samplers would settle the groups by their own settings.
        own = {"tasks": await target.questions.has_tasks(), "processes": bool(await target.workers.all())}
        for what, actual in own.items():
            if actual:
                raise ConfigError(f"run {config.target} has {what} of its own; choose another name for --as")
    await target.resettling.claim_settings(SETTINGS, await target.settings.keep(SETTINGS, expected, worker_of(config)))
    stored = (await target.settings.last(await target.runs.read()))[SETTINGS]
    if stored != expected:
        differing = sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name))
        name = differing[0]
        raise ConfigError(
            f"run {config.target} was resettled with {name}={stored.get(name)!r}, not {expected.get(name)!r}; give the same "
            "settings to continue it, or another name to --as"
        )


def worker_of(config: ResettleConfig) -> str:
    return f"resettle of {config.run}"


async def _copy_rules(source: Store, target: Store, config: ResettleConfig) -> None:
    """Every number of the run's rules, with what is given now in place of theirs. A run that has none has one that says what its
    samplers had."""
    whole = declared(config, template_digest="").plain()
    given = {name for name in given_settings(config) if config.source_of(name) != _of_samplers(source)}
    known = {one.number: one.values for one in await source.rules.all(config.policy)} or {FIRST: whole}
    for number, values in known.items():
        try:
            rules = Rules.model_validate(values | {name: whole[name] for name in whole if name in given})
        except ValidationError as exc:
            raise ConfigError(f"with rules {number} of run {source.run}: {exc.errors()[0]['msg']}") from exc
        await target.rules.add(RunRules.of(config.policy, number, rules.sections(), worker_of(config)))


async def _copy(
    source: Store, target: Store, config: ResettleConfig, agents: Agents, outcome: Resettled, progress: Progress
) -> None:
    there = set(await target.resettling.played(config.policy))
    missing = [task for task in await source.resettling.played(config.policy) if task not in there]
    outcome.copied = len(missing)
    row = progress.add_task("scoring" if config.scores_anew else "copying", total=len(missing))
    for start in range(0, len(missing), GROUPS_AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for task_id in missing[start : start + GROUPS_AT_ONCE]:
                group.create_task(_copy_one(source, target, task_id, config, agents, outcome), name=task_id)
        progress.advance(row, min(GROUPS_AT_ONCE, len(missing) - start))


async def _copy_one(
    source: Store, target: Store, task_id: str, config: ResettleConfig, agents: Agents, outcome: Resettled
) -> None:
    """A group whose scorer fails is not written: a failure is never a score."""
    group = await source.resettling.group(task_id)
    try:
        scored = await rescored(group, config, agents, config.new_scorers) if config.scores_anew else {}
    except (ScorerFailed, AgentFailed) as exc:
        outcome.failed[task_id] = str(exc)
        return
    documents = [(name, document) for name, of_name in group.items() for document in of_name]
    await copy_images(source, target, images_of(documents))
    await copy_experts(source, target, expert_chunks_of(documents))
    await target.resettling.write(unsettled(group, scored))
    stored = await target.resettling.scores(task_id)  # those of an earlier call, if it wrote them
    task = unsettled_task(group["tasks"][0], stored, scored, config.new_scorers)
    await target.resettling.write({"tasks": [task]})


async def _settle_all(
    target: Store, config: ResettleConfig, agents: Agents, outcome: Resettled, progress: Progress
) -> None:
    """As samplers do: groups that wait for group scorers are scored first."""
    worker = worker_of(config)

    async def settled(task: Task) -> None:
        await settle(target, task)

    scoring = GroupScoring(target, worker, config, agents.judge, settled)
    row = progress.add_task("settling", total=await target.resettling.count_unsettled(config.policy))
    while remaining := await target.resettling.count_unsettled(config.policy):
        task = await claim_next(target, worker, config.policy, scoring.left)
        if task is None:
            if scoring.left:
                raise DataError(scoring.alarms()[0])
            await asyncio.sleep(WAIT_S)  # the lease of a call that was killed, or the delay after a failure
        elif scoring.awaits(task):
            await scoring.score(task)
        else:
            await settle(target, task)
        progress.update(row, completed=(progress.tasks[row].total or remaining) - remaining)


async def _measure(source: Store, target: Store, config: ResettleConfig, outcome: Resettled) -> None:
    played = await target.resettling.played(config.policy)
    outcome.before = await source.resettling.outcomes(config.policy, played)
    outcome.after = await target.resettling.outcomes(config.policy, played)


def main() -> int | None:
    given = _given(sys.argv[1:])
    uri = str(given.get("db_connection_string", ""))

    async def run() -> Resettled:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            return await resettle(uri, given, progress)

    try:
        outcome = asyncio.run(run())
    except BaseExceptionGroup as group:  # of the groups that are settled at once: the first mistake says what to do
        first = cause_of(group)
        if not isinstance(first, TandemError):
            raise
        return _complain_of(first)
    except TandemError as exc:
        return _complain_of(exc)
    return print_outcome(outcome)


def _complain_of(exc: TandemError) -> int:
    sys.stderr.write(f"tandem: {visible(str(exc))}\n")
    return 2 if isinstance(exc, ConfigError) else 1


def _given(argv: Sequence[str]) -> dict[str, Any]:
    try:
        return ResettleConfig.given(argv)
    except ConfigError as exc:
        sys.stderr.write(f"tandem: {visible(str(exc))}\n")
        raise SystemExit(2) from exc


if __name__ == "__main__":
    run_command(main)
