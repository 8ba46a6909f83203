"""`tandem replay` and `tandem bisect`: questions about single decisions, answered from stored documents and kept weights."""

from pathlib import Path
from typing import Annotated

import typer

from shared.cli.children import run_program
from shared.cli.connect import USAGE, AsJson, Connection, RunName, complain

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
        run_program("sampler.what_if.replay", arguments, run=run, connection=db_connection_string)
    arguments += ["--device", device, *(["--run_dir", str(run_dir)] if run_dir else [])]
    run_program("trainer.what_if.replay", arguments, run=run, connection=db_connection_string)


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
    run_program("trainer.what_if.bisect", arguments, run=run, connection=db_connection_string)
