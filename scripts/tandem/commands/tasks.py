"""`tandem tasks import`: import a task file, or a mixture of several, into a run."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from shared.configuration.loading import read_sections, require_keys
from shared.configuration.secrets import token_of
from shared.configuration.typed_values import typed
from shared.errors import ConfigError
from shared.names import DEFAULT_POLICY, TRAIN_SPLIT
from shared.processes.run_module import search_working_directory
from shared.store import Store
from shared.tasks.checks import Samplers, TaskCheck
from shared.tasks.controllers import write_listed_tasks
from shared.tasks.files import NUM_GENERATIONS, ImportResult, ImportTarget, import_task_file
from shared.tasks.files import Progress as Report
from shared.tasks.mix import TasksConfig, import_mix
from shared.tasks.sampler_names import BUNDLED, SamplerTraits
from shared.tasks.tables import Converted, Mapped
from shared.tasks.tables import convert as convert_table
from shared.user_code.loading import import_own
from shared.user_code.payload import load_payload_model
from tandem.commands.connect import Connection, RunName, answer, console, warn, with_store

EXAMPLES = """Examples:

`tandem tasks import demo train.jsonl`  the training tasks, eight episodes each

`tandem tasks import demo train.jsonl --epochs 3`  three times, as epochs 0, 1 and 2

`tandem tasks import grid train.jsonl --payload_model assets.gridworld.world:GridTask`  checks a custom sampler's metadata

`tandem tasks import demo eval.jsonl --split eval --num_generations 1`  the held-out tasks

`tandem tasks import demo --from agentrl://host:5020/dbbench-std`  the tasks that an environment's controller lists

`tandem tasks import demo --config mix.yml`  several files, interleaved by weight: the section `tasks` of the YAML
"""

CONVERT_EXAMPLES = """Examples:

`tandem tasks convert train.csv tasks.jsonl --map query=question --map answer=label`

`tandem tasks convert hub:openai/gsm8k/main/train-00000-of-00001.parquet gsm8k.jsonl --take answer='#### (.+)'`

`tandem tasks convert verl.parquet tasks.jsonl --map query=prompt.0.content --map answer=reward_model.ground_truth`
"""

app = typer.Typer(help="Manage the tasks of a run.", no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def group() -> None:
    """Manage the tasks of a run."""


@app.command("import", epilog=EXAMPLES)
def import_(
    run: RunName,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.jsonl]", help="One task on a line.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="agentrl://HOST:PORT/TASK", help="Instead of FILE: what an environment lists."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token_file", help="File with the Bearer token that the environments of --from want."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="MIX.yml", help="Instead of FILE: the sources in its section `tasks`."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Split of FILE's tasks: train, eval, or another name. [default: train]"),
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="The policy that plays them.")] = DEFAULT_POLICY,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Number of epochs for which FILE is imported. [default: 1]")
    ] = None,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Import FILE once, as this epoch.")] = None,
    num_generations: Annotated[
        int, typer.Option("--num_generations", min=1, help="Episodes per task: the size of its group.")
    ] = NUM_GENERATIONS,
    at_version: Annotated[
        int | None, typer.Option("--at_version", min=0, help="Only engines with this policy version play them.")
    ] = None,
    payload_model: Annotated[
        str | None,
        typer.Option(
            "--payload_model",
            metavar="MODULE:CLASS",
            help="A pydantic model that every line's metadata must fit, such as a custom sampler's.",
        ),
    ] = None,
    scorer_modules: Annotated[
        list[str] | None,
        typer.Option(
            "--scorer_modules",
            metavar="MODULE",
            help="A module or FILE.py that registers your scorers, as given to your samplers; may be repeated. An unknown "
            "scorer is an error if modules are given here or in the section `sampler` of MIX.yml, else a warning.",
        ),
    ] = None,
    image_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--image_hosts",
            metavar="HOST",
            help="A host from which images of http(s) URLs are fetched; may be repeated. Default: none. With --config: the key "
            "`image_hosts` of its section.",
        ),
    ] = None,
    db_connection_string: Connection = None,
) -> None:
    """Check task files and import them.

    Each line is an object with **id** and **query**, and optionally **answer**, **scorer** or **scorers**, **answer_schema**
    ("answer" or "boxed"), **tools**, **exclude_tools**, **sampler**, **system**, **max_turns**, **temperature**, **metadata**,
    **source**, **images**.

    The whole file is checked before the first write. Repeating an import changes nothing: stored tasks with the same
    content stay, and an interrupted import continues. A stored task with different content is an error. Tasks are
    opened in the order of the file (of a mixture: by weight), after those imported before.
    """
    search_working_directory()
    if [file, source, config].count(None) != 2:
        answer(_refuse("give one of FILE.jsonl, --from agentrl://HOST:PORT/TASK and --config MIX.yml"))
    if token_file is not None and source is None:
        answer(_refuse("--token_file is for --from"))
    if epoch is not None and epochs is not None:
        answer(_refuse("--epoch and --epochs exclude each other: one epoch by number, or several from 0 on"))
    file_only: dict[str, object] = {"--split": split, "--epochs": epochs, "--epoch": epoch, "--at_version": at_version}
    file_only |= {"--payload_model": payload_model, "--image_hosts": image_hosts}
    given = [name for name, value in file_only.items() if value is not None]
    if config is not None and given:
        answer(_refuse(f"{given[0]} is for a FILE; with --config it stands in {config}"))

    checks: list[TaskCheck] = []

    async def work(store: Store) -> ImportResult:
        check = TaskCheck(replace(_samplers(config, scorer_modules), model=await _model(store, policy)))
        checks.append(check)
        with _bars() as progress:
            report = _reporter(progress)
            if config is not None:
                mix = TasksConfig.load(["--config", str(config)])
                chosen_here: dict[str, Any] = {"policy": policy, "num_generations": num_generations}
                return await import_mix(store, mix, **chosen_here, progress=report, check=check)
            chosen = range(epochs or 1) if epoch is None else (epoch,)
            model = None if payload_model is None else load_payload_model(payload_model)
            target = ImportTarget(
                split or TRAIN_SPLIT,
                policy,
                chosen,
                num_generations,
                at_version,
                model,
                check=check,
                image_hosts=image_hosts or (),
            )
            with tempfile.TemporaryDirectory() as folder:
                path = file
                if source is not None:
                    token = token_of(None, token_file, "--token_file")
                    path = await asyncio.to_thread(write_listed_tasks, source, Path(folder), token)
                assert path is not None, "one of them is given"
                return await import_task_file(store, path, target, report)

    result = with_store(db_connection_string, run, work, must_exist=False)
    for text in (text for check in checks for text in check.counted_warnings):
        warn(text)
    what = f"split {split or TRAIN_SPLIT}" if config is None else str(config)
    console().print(f"run {run}, {what}: {result.inserted} inserted, {result.unchanged} unchanged", soft_wrap=True)


async def _model(store: Store, policy: str) -> Path | None:
    """The folder of the model that the policy's trainer started with last; None: it is not on this machine, or not known."""
    name = (await store.settings.of_trainer(await store.runs.get(), policy)).get("model_name_or_path")
    folder = Path(str(name or ""))
    return folder if name and (folder / "config.json").is_file() else None


def _samplers(config: Path | None, modules: Sequence[str] | None) -> Samplers:
    """What is known about the samplers: modules on the command line, else the section `sampler` of the YAML file."""
    settings = {} if config is None else require_keys(read_sections(config).get("sampler"), f"{config}: sampler")
    named, is_known = modules or typed(list[str] | None, settings.get("scorer_modules"))[0], True
    for name in named if isinstance(named, list) else ():
        try:
            import_own("scorer_modules", str(name))
        except ConfigError as exc:
            if modules:
                raise
            warn(f"{config}: {exc}. Its scorers are not known here")
            is_known = False
    knows_scorers = bool(named) and is_known and "sampler" not in settings  # a custom class may score on its own
    own = settings.get("samplers")
    free = SamplerTraits(scores_itself=True, uses_tools=False)  # nothing is known of a custom class
    return Samplers(
        knows_scorers=knows_scorers,
        has_judge=True if typed(Path | None, settings.get("agent_config_path"))[0] else None,
        named=BUNDLED | {str(name): free for name in (own if isinstance(own, dict) else ())},
        knows_samplers=isinstance(own, dict),
    )


@app.command(epilog=CONVERT_EXAMPLES)
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="FILE.csv, .tsv, .parquet, .json or .jsonl, or hub:OWNER/DATASET/PATH/FILE.parquet."
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="The task file to write, whole or not at all.")],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="FIELD=COLUMN", help="The column of a field; may be repeated. a.0.b reaches inside."
        ),
    ] = None,
    take: Annotated[
        list[str] | None,
        typer.Option(
            "--take", metavar="FIELD=REGEX", help="Keep of a field's text what the first group of REGEX matches."
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="COLUMN", help="Keep a column under metadata; may be repeated."),
    ] = None,
) -> None:
    """Make a task file of a table.

    Columns with the name of a field (**id**, **query** or **question**, **answer**, …) need no --map. Without a column **id**
    rows are numbered. The result is checked as an import would check it.
    """

    async def work() -> Converted:
        mapped = Mapped(_pairs("--map", columns), _pairs("--take", take), metadata or ())
        with _rows() as progress:
            bar = progress.add_task("converting", total=None)
            return convert_table(source, output, mapped, lambda count: progress.update(bar, completed=count))

    result = answer(work())
    if result.left_out:
        warn(
            f"columns that no field takes: {', '.join(result.left_out)}; --map FIELD=COLUMN or --metadata COLUMN keeps one"
        )
    console().print(f"{output}: {result.tasks} tasks", soft_wrap=True)


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise ConfigError(f"{option} {text}: expected FIELD=VALUE")
        if name in pairs:
            raise ConfigError(f"{option} {text}: {name!r} is given twice")
        pairs[name] = value
    return pairs


def _rows() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} rows"))
    return Progress(*columns, console=console())


async def _refuse(text: str) -> None:
    raise ConfigError(text)


def _bars() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console())


def _reporter(progress: Progress) -> Report:
    bars: dict[str, TaskID] = {}

    def report(phase: str, done: int, total: int) -> None:
        if phase not in bars:
            bars[phase] = progress.add_task(phase, total=total)
        progress.update(bars[phase], completed=done)

    return report
