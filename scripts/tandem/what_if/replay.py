"""`tandem replay RUN RECORD`: a record's log-probs again, by the trainer's forward, under the very weights that sampled them.

    python -m tandem.what_if.replay --run RUN --record RECORD          DB_CONNECTION_STRING in the environment

Where `tandem verify` answers "do engine and trainer agree?" for a run, this shows one record token by token. Exit status 1 when
a token differs by more than the tolerance, or none could be compared.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from rich.progress import Progress

from shared.configuration.loading import ServiceConfig
from shared.configuration.secrets import secret_field
from shared.documents.run import PolicyVersion
from shared.errors import ConfigError, DataError, TandemError
from shared.names import RunName
from shared.outside_text import visible
from shared.store import Store
from tandem.what_if.forward_scores import inputs_of_turns, turn_logprobs
from tandem.what_if.replayed import Replay, ReplayedTurn, at_full_weight, print_replay
from tandem.what_if.row_inputs import RowInputs
from tandem.what_if.sampled import SampledEpisode, Spell, read_episode, speller
from tandem.what_if.stored_weights import StoredWeights, kept_weights, published_versions
from trainer.process.ending import end_process
from trainer.process.parallel import parallel_session


class ReplayConfig(ServiceConfig):
    """Compares a record's stored log-probs with recomputed ones, token by token."""

    section: ClassVar[str] = "replay"
    program: ClassVar[str] = "python -m tandem.what_if.replay"

    run: RunName = Field(description="Run name: the database.")
    db_connection_string: str = secret_field(description="MongoDB to use.")
    record: str = Field(description="The record's id.")
    tolerance: float = Field(1e-4, gt=0, description="Largest difference of a log-prob, in nats.")
    show: int = Field(10, ge=0, description="How many of the biggest differences are shown.")
    run_dir: Path | None = Field(None, description="The trainer's output_dir. None: output/RUN.")
    device: Literal["cpu", "cuda"] = Field("cpu", description="cpu or cuda.")
    json_output: bool = Field(False, description="One JSON object instead of tables.")


def replay(
    episode: SampledEpisode, inputs: RowInputs, weights: StoredWeights, device: str, progress: Progress
) -> Replay:
    """Each token under the version that sampled it; a version without kept weights leaves NaN and a note."""
    recomputed = [np.full(len(turn.ids), np.nan, dtype=np.float32) for turn in episode.turns]
    missing: dict[int, list[str]] = {}
    numbers = sorted({version for turn in episode.turns for version in turn.versions.tolist()})
    for number in progress.track(numbers, description="versions"):
        at = [i for i, turn in enumerate(episode.turns) if (turn.versions == number).any()]
        stored = weights.of_version(number)
        if stored is None:
            for i in at:
                missing.setdefault(i, []).append(f"v{number}")
            continue
        lm = weights.load(stored)
        with torch.no_grad():
            again = turn_logprobs(lm, [episode.turns[i] for i in at], device, inputs, settle_ties=True)
        for i, logprobs in zip(at, again, strict=True):
            mine = episode.turns[i].versions == number
            recomputed[i][mine] = at_full_weight(logprobs.float().cpu().numpy()[mine])
    turns = [
        ReplayedTurn(turn, recomputed[i], f"the weights of {', '.join(missing[i])} are pruned" if i in missing else "")
        for i, turn in enumerate(episode.turns)
    ]
    result = Replay(episode, "the trainer's forward under the kept weights of their versions", turns)
    if not result.compared:
        has = ", ".join(f"{stored} (step {stored.step})" for stored in weights.all) or "none"
        raise DataError(
            f"record {episode.record.id} was sampled by versions {', '.join(map(str, numbers))}, whose weights are gone; kept "
            f"are: {has}. `keep_versions` and `save_steps` of the trainer keep more; --run_dir names another output_dir"
        )
    return result


def main() -> None:
    config = ReplayConfig.load_or_exit()

    async def read() -> tuple[SampledEpisode, RowInputs, Sequence[PolicyVersion], Spell]:
        async with Store.open(config.db_connection_string, config.run, read_only=True) as store:
            episode = await read_episode(store, config.record)
            policy = episode.record.policy
            published = await published_versions(store, policy)
            inputs = await inputs_of_turns(store, episode.turns, published)
            return episode, inputs, published, await speller(store, policy)

    try:
        episode, inputs, published, spell = asyncio.run(read())
        with (
            parallel_session(config.device),
            kept_weights(published, config.run_dir or Path("output") / config.run, config.device) as weights,
            Progress(console=Console(stderr=True), transient=True) as progress,
        ):
            result = replay(episode, inputs, weights, config.device, progress)
    except TandemError as exc:
        sys.stderr.write(f"tandem: {visible(str(exc))}\n")
        end_process(2 if isinstance(exc, ConfigError) else 1)
    end_process(print_replay(result, config.tolerance, config.show, spell, as_json=config.json_output))


if __name__ == "__main__":
    run_command(main)
