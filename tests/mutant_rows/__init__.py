"""The list of `python -m tests.mutants`: each row takes one protection out, and names the test that fails then."""

from tests.mutant_rows import engines, episodes, feedback, gateway, launch, mcp_docker, mcp_native, store, trainer
from tests.mutant_rows.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *engines.MUTANTS,
    *episodes.MUTANTS,
    *feedback.MUTANTS,
    *gateway.MUTANTS,
    *launch.MUTANTS,
    *mcp_docker.MUTANTS,
    *mcp_native.MUTANTS,
    *store.MUTANTS,
    *trainer.MUTANTS,
)
