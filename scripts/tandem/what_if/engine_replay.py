"""`tandem replay RUN RECORD --engine URL`: a record's ids through an engine, whose log-probs of the prompt are compared.

    python -m tandem.what_if.engine_replay --run RUN --record RECORD --engine_url URL    DB_CONNECTION_STRING in the environment

One request for each turn: what the engine read then, and the reply; one token is sampled and dropped. Only tokens of the version
that the engine serves are compared, unless told otherwise. Exit status 1 when one differs by more than the tolerance.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)

import asyncio
import sys
from typing import ClassVar

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.progress import Progress

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.settings.engine_access import EngineAccess
from shared.configuration.loading import ServiceConfig
from shared.configuration.secrets import secret_field
from shared.errors import ConfigError, DataError, TandemError
from shared.names import RunName
from shared.outside_text import visible
from shared.store import Store
from tandem.what_if.replayed import Replay, ReplayedTurn, at_full_weight, print_replay
from tandem.what_if.sampled import SampledEpisode, SampledTurn, read_episode, speller


class EngineReplayConfig(ServiceConfig):
    """Compares a record's stored log-probs with those of an engine."""

    section: ClassVar[str] = "replay"
    program: ClassVar[str] = "python -m tandem.what_if.engine_replay"

    run: RunName = Field(description="Run name: the database.")
    db_connection_string: str = secret_field(description="MongoDB to use.")
    record: str = Field(description="The record's id.")
    engine_url: str = Field(description="The engine: http://host:30000.")
    any_version: bool = Field(False, description="Compare tokens of other versions than the engine's too.")
    tolerance: float = Field(1e-4, gt=0, description="Largest difference of a log-prob, in nats.")
    show: int = Field(10, ge=0, description="How many of the biggest differences are shown.")
    json_output: bool = Field(False, description="One JSON object instead of tables.")
    engines: EngineAccess = EngineAccess()


async def replay(
    client: EngineClient, url: str, episode: SampledEpisode, progress: Progress, *, any_version: bool
) -> Replay:
    """Raises EngineError, and DataError where no token could be compared."""
    turns: list[ReplayedTurn] = []
    served: set[int] = set()
    for turn in progress.track(episode.turns, description="turns"):
        if turn.temperature != 1.0 or not turn.truncation.keeps_all:
            drawn = f"sampled at temperature {turn.temperature:g}, {turn.truncation}"
            why = f"{drawn}; engines tell log-probs of a prompt at 1 alone, of the whole distribution"
            turns.append(ReplayedTurn(turn, np.full(len(turn.ids), np.nan, dtype=np.float32), why))
            continue
        if turn.images:
            why = f"its prompt has {len(turn.images)} images; engines are asked for the log-probs of texts alone"
            turns.append(ReplayedTurn(turn, np.full(len(turn.ids), np.nan, dtype=np.float32), why))
            continue
        name = f"replay-{turn.dispatch.id}"
        scores = await client.score_prompt(url, [*turn.prompt, *turn.ids], len(turn.prompt) - 1, name)
        served.add(scores.version)
        turns.append(_compared(turn, scores.logprobs, scores.version, any_version=any_version))
    versions = ", ".join(f"version {version}" for version in sorted(served))
    result = Replay(episode, f"the engine at {url}" + (f", which serves {versions}" if served else ""), turns)
    if not result.compared:
        raise DataError(
            f"record {episode.record.id}: no token could be compared with the engine at {url}: {turns[0].note}. Replay it with "
            "the kept weights (without --engine), start an engine with those weights, or add --any_version"
        )
    return result


def _compared(turn: SampledTurn, logprobs: list[float], version: int, *, any_version: bool) -> ReplayedTurn:
    recomputed = at_full_weight(np.array(logprobs, dtype=np.float32))
    others = sorted(set(turn.versions.tolist()) - {version})
    if not others:
        return ReplayedTurn(turn, recomputed)
    names = ", ".join(f"v{other}" for other in others)
    if any_version:
        return ReplayedTurn(
            turn, recomputed, f"nothing is left out, but its tokens of {names} are compared with v{version}"
        )
    recomputed[turn.versions != version] = np.nan
    return ReplayedTurn(turn, recomputed, f"its tokens of {names}, since the engine serves v{version}")


def main() -> int | None:
    config = EngineReplayConfig.load_or_exit()

    async def run() -> int:
        async with Store.open(config.db_connection_string, config.run, read_only=True) as store:
            episode = await read_episode(store, config.record)
            spell = await speller(store, episode.record.policy)
        async with EngineClient(api_key=config.engines.engine_api_key) as client:
            with Progress(console=Console(stderr=True), transient=True) as progress:
                result = await replay(client, config.engine_url, episode, progress, any_version=config.any_version)
        return print_replay(result, config.tolerance, config.show, spell, as_json=config.json_output)

    try:
        return asyncio.run(run())
    except TandemError as exc:
        sys.stderr.write(f"tandem: {visible(str(exc))}\n")
        return 2 if isinstance(exc, ConfigError) else 1


if __name__ == "__main__":
    run_command(main)
