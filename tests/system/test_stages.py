"""A run whose trainer is two stages of a model, as whole processes: its engine gets the adapter of both."""

from pathlib import Path

import pytest

from shared.store import Store
from tandem.audit.run import audit
from tests.system.processes import Run, verify
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_an_engine_samples_with_the_adapter_of_two_stages(tmp_path: Path) -> None:
    """Its log-probs are those that one process recomputes from the published files, of several versions."""
    with Run(tmp_path, max_steps=3, max_staleness=0) as run:
        run.trainer_flags |= {"pp_size": "2", "publish_mode": "adapter", "lora_rank": "4", "learning_rate": "1e-2"}
        await queue_tasks(run)
        run.start_all(trainer_processes=2)
        assert run.wait("trainer") == 0, run.log("trainer")
        assert run.end("sampler0") == 0, run.log("sampler0")
        verify(run)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            report = await audit(store)
            assert report.ok, report
            versions = {version.version: version for version in await store.versions.all("main")}
            trained = await store.data.find({"status": "trained"})
        sampled = {episode.max_version for episode in trained}
        assert len(sampled & versions.keys()) >= 2
        assert all(versions[number].adapter for number in sampled if versions[number].step > 0)
