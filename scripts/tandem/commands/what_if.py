"""`tandem replay` and `tandem bisect`: questions about single decisions, answered from stored documents and kept weights."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tandem.commands.children import run_program
from tandem.commands.connect import USAGE, AsJson, Connection, RunName, complain

RecordId = Annotated[str, typer.Argument(metavar="RECORD", help="A record's id, as `tandem show RUN` prints it.")]
RunDir = Annotated[
    Path | None,
    typer.Option("--run_dir", help="The trainer's output_dir, for its checkpoints. Default: output/RUN."),
]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]

REPLAY_EXAMPLES = """Examples:

`tandem replay demo main:eval:0:arith-00017:3:1`  by the trainer's forward, under the kept weights that sampled it

`tandem replay demo main:eval:0:arith-00017:3:1 --engine http://127.0.0.1:30000 --tolerance 0.02`  by an engine

`tandem replay demo main:eval:0:arith-00017:3:1 --json | jq .largest_difference`  for programs
"""


def replay(
    run: RunName,
    record: RecordId,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="URL", help="An engine: http://host:30000. Default: --checkpoint.")
    ] = None,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Use the kept weights of the versions that sampled the record.")
    ] = False,
    any_version: Annotated[
        bool, typer.Option("--any_version", help="With --engine: also compare tokens of other versions than it serves.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=1e-9, help="Exit with 1 beyond this difference, in nats.")
    ] = 1e-4,
    show: Annotated[int, typer.Option("--show", min=0, help="How many of the biggest differences are shown.")] = 10,
    run_dir: RunDir = None,
    device: Device = "cpu",
    engine_api_key_var: Annotated[
        str | None,
        typer.Option("--engine_api_key_var", metavar="NAME", help="Environment variable with the engine's API key."),
    ] = None,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Send a record's exact ids through an engine, or the trainer's forward, and compare the log-probs token by token.

    Nothing is sampled anew, and nothing is written. What the engine said when it sampled and what is computed now must agree to
    float error: a wrong position, a lost token, a stale cache or other weights show here, with the text where it begins. Exit
    code 0: they agree within --tolerance; 1: they do not, or nothing could be compared; 2: wrong usage.
    """
    if engine is not None and checkpoint:
        complain("give either --engine URL or --checkpoint")
        raise typer.Exit(USAGE)
    arguments = ["--run", run, "--record", record, "--tolerance", str(tolerance), "--show", str(show)]
    arguments += ["--json_output", "true"] if as_json else []
    if engine is not None:
        arguments += ["--engine_url", engine, "--any_version", str(any_version).lower()]
        arguments += ["--engine_api_key_var", engine_api_key_var] if engine_api_key_var else []
        run_program(
            "tandem.what_if.engine_replay", arguments, extra="sampler", run=run, connection=db_connection_string
        )
    arguments += ["--device", device, *(["--run_dir", str(run_dir)] if run_dir else [])]
    run_program("tandem.what_if.replay", arguments, extra="trainer", run=run, connection=db_connection_string)


BISECT_EXAMPLES = """Examples:

`tandem bisect demo main:eval:0:arith-00017:3:1 0`  the reply of turn 0 under every kept version, and what changed it

`tandem bisect demo main:eval:0:arith-00017:3:1 0 --token 13`  one token of it (`tandem show RUN RECORD --tokens` numbers them)

`tandem bisect demo main:eval:0:arith-00017:3:1 0 --at_step 12`  the groups of another step
"""


def bisect(
    run: RunName,
    record: RecordId,
    turn: Annotated[int, typer.Argument(metavar="TURN", min=0, help="The turn, from 0.")],
    token: Annotated[
        int | None, typer.Option("--token", min=0, help="One token of the reply, from 0. Default: the whole reply.")
    ] = None,
    at_step: Annotated[
        int | None,
        typer.Option("--at_step", min=1, help="Show the groups of this step. Default: of the largest change."),
    ] = None,
    groups: Annotated[int, typer.Option("--groups", min=1, help="How many groups are shown.")] = 8,
    run_dir: RunDir = None,
    device: Device = "cpu",
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Find the step that changed a decision, and the groups whose data changed it.

    Computes the log-prob of one stored reply under every kept version and checkpoint, takes AdamW's momentum out of its changes,
    and names the step whose own data asked for the largest one. The groups of that step are listed by their *push*: how far a
    group's part of the step moves this reply. Rewards and advantages stand next to them, so a group with wrong rewards is
    seen at once. Keep enough weights (`keep_versions` of the trainer). Reads only.
    """
    arguments = ["--run", run, "--record", record, "--turn", str(turn), "--groups", str(groups), "--device", device]
    arguments += ["--token", str(token)] if token is not None else []
    arguments += ["--at_step", str(at_step)] if at_step is not None else []
    arguments += ["--run_dir", str(run_dir)] if run_dir else []
    arguments += ["--json_output", "true"] if as_json else []
    run_program("tandem.what_if.bisect", arguments, extra="trainer", run=run, connection=db_connection_string)


RESETTLE_EXAMPLES = """Examples:

`tandem resettle demo --as demo-z --advantage zscore`  the same scores, another estimator

`tandem resettle demo --as demo-brief --scorer math --scorer brief=0.1 --scorer_modules my_pkg.scorers`  scored anew

`tandem resettle demo --as demo-dapo --set zero_variance_tolerance=1e-6 --set mask_overlong=true`  rules: docs/train/groups.md

`python -m trainer --run demo-z-trained --data_run demo-z …`  then trains on it, without samplers
"""


def resettle(
    run: RunName,
    target: Annotated[str, typer.Option("--as", metavar="RUN2", help="The new run, on the same server.")],
    scorer: Annotated[
        list[str] | None,
        typer.Option("--scorer", metavar="NAME[=WEIGHT]", help="Score anew by this one; may be repeated."),
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Ask the tasks' own scorers again, for example after a correction.")
    ] = False,
    scorer_modules: Annotated[
        list[str] | None,
        typer.Option("--scorer_modules", metavar="MODULE", help="Modules that register scorers; may be repeated."),
    ] = None,
    advantage: Annotated[
        str | None, typer.Option("--advantage", help="Estimator. Default: that of the run's samplers.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of the sampler; may be repeated."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file; its section `sampler` is read.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="The policy that owns the tasks.")] = None,
    db_connection_string: Connection = None,
) -> None:
    """Score and settle the played groups of a run anew, into another run: no episode is played again.

    Scorers read the stored conversations. Tokens, log-probs and versions are copied bit for bit; RUN stays as it is. Without
    --scorer and --rescore the scores stay, and only rules and advantages are computed anew. The same command continues an
    interrupted one, and repeated it changes nothing. Exit code 1: some groups have no score, since a scorer failed; repeat it.
    """
    weighted = [_weighted(one) for one in scorer or ()]
    arguments = ["--run", run, "--target", target, "--rescore", str(rescore).lower()]
    arguments += ["--new_scorers", json.dumps(weighted)] if weighted else []
    arguments += ["--scorer_modules", json.dumps(scorer_modules)] if scorer_modules else []
    for name, value in (("advantage", advantage), ("config", config), ("policy", policy)):
        arguments += [f"--{name}", str(value)] if value is not None else []
    for one in settings or ():
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            complain(f"--set {one}: expected NAME=VALUE, such as min_turns=2")
            raise typer.Exit(USAGE)
        arguments += [f"--{name}", value]
    run_program("tandem.what_if.resettle", arguments, extra="sampler", run=run, connection=db_connection_string)


def _weighted(text: str) -> dict[str, str | float]:
    name, equals, weight = text.partition("=")
    try:
        return {"name": name, "weight": float(weight) if equals else 1.0}
    except ValueError as exc:
        complain(f"--scorer {text}: the weight is {weight!r}; expected a number, as in brief=0.1")
        raise typer.Exit(USAGE) from exc
