"""The list of `python -m tests.mutants`: each row takes one protection out, and names the test that fails then."""

from tests.mutant_rows import (
    actors,
    bundled_worlds,
    engines,
    environments,
    episodes,
    feedback,
    gateway,
    gateway_agents,
    gateway_attempts,
    launch,
    mcp_clients,
    mcp_docker,
    mcp_native,
    reading,
    store,
    trainer,
    viewer,
    what_if,
)
from tests.mutant_rows.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *actors.MUTANTS,
    *bundled_worlds.MUTANTS,
    *engines.MUTANTS,
    *environments.MUTANTS,
    *episodes.MUTANTS,
    *feedback.MUTANTS,
    *gateway.MUTANTS,
    *gateway_agents.MUTANTS,
    *gateway_attempts.MUTANTS,
    *launch.MUTANTS,
    *mcp_clients.MUTANTS,
    *mcp_docker.MUTANTS,
    *mcp_native.MUTANTS,
    *reading.MUTANTS,
    *store.MUTANTS,
    *trainer.MUTANTS,
    *viewer.MUTANTS,
    *what_if.MUTANTS,
)
