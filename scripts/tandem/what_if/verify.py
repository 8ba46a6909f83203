"""Recompute the log-probs of stored records under the very weights that sampled them, and compare.

    tandem verify --run RUN --db_connection_string URI --records 64

What an engine said and what the trainer computes must agree to float error: a wrong position, a lost token or a stale cache
shows here at once. Needs the files of the versions in question (the newest ones are kept), and puts together what was published
as changes. Exit status 1 when a record differs by more than the tolerance.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)

import asyncio
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from rich.table import Table

from shared.configuration.loading import ServiceConfig
from shared.configuration.secrets import secret_field
from shared.documents import DBRecordData
from shared.documents.run import PolicyVersion
from shared.errors import DataError, TandemError
from shared.names import DEFAULT_POLICY, PolicyName, RunName
from shared.store import Store
from shared.tokens.flatten import tree_of
from shared.tokens.record_tree import RecordTree
from shared.weights.assembly import Assembly
from tandem.what_if.forward_scores import settled_logprobs
from tandem.what_if.row_inputs import RowInputs, read_inputs
from trainer.modeling.forward import TreeLM
from trainer.modeling.forward_choice import choose_forward_mode
from trainer.modeling.forward_ways import OWN, tree_obstacle
from trainer.modeling.model import load_model

log = logging.getLogger(__name__)


class VerifyConfig(ServiceConfig):
    """Compares stored log-probs with recomputed ones."""

    section: ClassVar[str] = "verify"
    program: ClassVar[str] = "tandem verify"

    run: RunName = Field(description="Run name: the database.")
    db_connection_string: str = secret_field(description="MongoDB to use.")
    policy: PolicyName = Field(DEFAULT_POLICY, description="Which policy.")
    records: int = Field(64, gt=0, description="Records to check, the newest first.")
    tolerance: float = Field(1e-4, gt=0, description="Largest difference of a log-prob, in nats.")
    device: Literal["cpu", "cuda"] = Field("cpu", description="cpu or cuda.")


@dataclass(frozen=True, slots=True)
class Verified:
    """One version: how many records and tokens were compared, and the largest difference (nats)."""

    version: int
    step: int
    records: int
    tokens: int
    largest_difference: float


def largest_difference(
    lm: TreeLM, trees: Sequence[RecordTree], version: int, device: str, inputs: RowInputs
) -> tuple[int, float]:
    """(tokens of `version`, largest |stored − recomputed| over them). `inputs`: those of the trees."""
    tokens, largest, mask = 0, 0.0, lm.mask(device)
    for tree in trees:
        rows = inputs.rows(lm, [tree])
        parts = [settled_logprobs(lm, row.to(device), mask).cpu() - row.old_logprob_E for row in rows]
        of_version_E = torch.from_numpy(tree.versions_N[np.flatnonzero(tree.trained_N)] == version)
        difference_E = torch.cat([torch.zeros(0), *parts]).abs()[of_version_E]
        tokens += len(difference_E)
        largest = max(largest, float(difference_E.max()) if len(difference_E) else 0.0)
    return tokens, largest


async def verify(store: Store, config: VerifyConfig) -> list[Verified]:
    """Compare the newest records, version by version. Raises DataError when no version's files are left, or they are damaged."""
    run = await store.runs.read()
    other = (await store.settings.of_trainer(run, config.policy)).get("data_run")
    if other:
        raise DataError(
            f"run {config.run} trains offline: its data was sampled by the versions of run {other}; verify that"
        )
    published = await store.versions.all(config.policy)
    available = {v.version: v for v in published if not v.pruned}
    if not available:
        raise DataError(f"policy {config.policy}: the files of every version are pruned; nothing to compare with")
    data = await _newest(store, config, available)
    stored = await store.records.tokens_of([d.record for d in data])
    results = []
    with tempfile.TemporaryDirectory(prefix="tandem-verify-") as cache:
        assembly = Assembly(Path(cache))
        for number, version in sorted(available.items()):
            trees = [tree_of(d, stored[d.record]) for d in data if d.min_version <= number <= d.max_version]
            if trees:
                reached = assembly.reach(version, published, newer_than=number)
                lm = _load(reached.folder, config.device)
                tokens, largest = 0, 0.0
                for tree in trees:  # one by one, so that memory holds the images of one
                    inputs = await read_inputs(store, [tree], reached.folder)
                    more, difference = largest_difference(lm, [tree], number, config.device, inputs)
                    tokens, largest = tokens + more, max(largest, difference)
                results.append(Verified(number, version.step, len(trees), tokens, largest))
                assembly.keep_only(number)
    return results


def _load(directory: Path, device: str) -> TreeLM:
    lm = TreeLM(load_model(directory, attn_implementation=OWN.attention)).to(device).requires_grad_(False)
    choose_forward_mode(lm, "auto", torch.device(device), obstacle=tree_obstacle(lm.causal_lm.config))
    return lm


async def _newest(store: Store, config: VerifyConfig, available: dict[int, PolicyVersion]) -> list[DBRecordData]:
    where = {"policy": config.policy, "min_version": {"$in": list(available)}}
    records = await store.data.find(where)
    return records[-config.records :]


def main() -> None:
    config = VerifyConfig.load_or_exit()
    logging.basicConfig(level="WARNING")

    async def run() -> list[Verified]:
        async with Store.open(config.db_connection_string, config.run, must_exist=True) as store:
            return await verify(store, config)

    try:
        results = asyncio.run(run())
    except TandemError as exc:
        sys.stderr.write(f"{exc}\n")
        sys.exit(1)
    table = Table("version", "step", "records", "sampled tokens", "largest |Δ log-prob|", title=f"run {config.run}")
    for r in results:
        table.add_row(str(r.version), str(r.step), str(r.records), str(r.tokens), f"{r.largest_difference:.2e}")
    Console(emoji=False).print(table)
    sys.exit(0 if results and all(r.largest_difference <= config.tolerance for r in results) else 1)


if __name__ == "__main__":
    run_command(main)
