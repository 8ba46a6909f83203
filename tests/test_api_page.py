"""docs/reference/api.md: every name can be imported and stands in an `__all__`, and every example runs as it stands."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sampler.core.scorers import registry
from sampler.core.settings.groups import ESTIMATORS
from sampler.core.settlement.advantages import group_advantages
from sampler.core.settlement.groups import ScoredEpisode, ScoredTurn
from sampler.scorers import ScoringRequest, score_answer
from sampler.settings import SamplerConfig
from shared.documents import Record
from shared.documents.states import RecordStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.running import running_sampler, until
from tests.shared.builders import import_tasks
from tests.trainer.test_losses import batch
from trainer.losses import compute
from trainer.settings.config import TrainerConfig
from trainer.settings.loss import LOSSES
from trainer.settings.normalizations import NORMALIZATIONS, BatchTurn

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
SECTIONS = {
    module: text
    for head, text in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for module in re.findall(r"`([\w.]+)`$", head)
}
COMPLETE = ("sampler", "sampler.history", "sampler.settlement", "trainer.data")  # all of `__all__` is on the page


def named(module: str) -> list[str]:
    """Of the section's table of names."""
    table = SECTIONS[module].split("| name | what it is |\n|---|---|\n")[1].split("\n\n")[0]
    return [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def example(module: str) -> dict[str, Any]:
    """What the section's example defines."""
    names: dict[str, Any] = {"__name__": "docs_api"}
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS[module], re.DOTALL)
    exec(block, names)
    return names


def settings(module: str) -> dict[str, Any]:
    (block,) = re.findall(r"```yaml\n(.*?)```", SECTIONS[module], re.DOTALL)
    ((_, given),) = yaml.safe_load(block).items()
    return dict(given)


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that an example registers are forgotten with its test."""
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))
    for table in (ESTIMATORS, LOSSES, NORMALIZATIONS):
        monkeypatch.setattr(table, "_known", dict(table._known))


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in SECTIONS for name in named(module)])
def test_a_name_of_the_page_can_be_imported_and_stands_in_all(module: str, name: str) -> None:
    package = importlib.import_module(module)
    assert getattr(package, name).__name__ == name
    assert name in package.__all__


@pytest.mark.parametrize("module", COMPLETE)
def test_what_a_package_offers_to_users_is_on_the_page(module: str) -> None:
    assert set(named(module)) == set(importlib.import_module(module).__all__)


def test_the_methods_of_a_sampler_are_on_the_page() -> None:
    from sampler import AsyncSampler

    rows = SECTIONS["sampler"].split("| of `AsyncSampler` | |\n|---|---|\n")[1].split("\n\n")[0]
    given = set(re.findall(r"`(\w+)`", rows)) - {"_"}
    public = {name for name in vars(AsyncSampler) if not name.startswith("_")} | {
        "config",
        "claim",
        "resources",
        "episode",
    }
    assert given == public


def test_importing_a_package_of_the_sampler_loads_nothing_heavy() -> None:
    heavy = ("pydantic", "numpy", "httpx", "pymongo")
    code = f"import sampler, sampler.history, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("module", "kind", "replies"), [("sampler", "Doubter", 2), ("sampler.history", "LastTwo", 4)])
async def test_samplers_of_the_page_play_an_episode(module: str, kind: str, replies: int, store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)

    async def played() -> Record | None:
        return await store.records.get("main:train:0:t0:0:1")

    async with running_sampler(store, example(module)[kind]):
        record = await until(played, lambda found: found is not None and found.status is not RecordStatus.RUNNING)
    assert record is not None
    assert (record.termination, record.error) == ("answered", None)
    dispatches = (await store.records.dispatches_of([record.id]))[record.id]
    assert len(dispatches) == replies
    if kind == "LastTwo":
        assert [len(d.messages) for d in dispatches] == [2, 4, 6, 6]
    else:
        assert record.metrics == {"long": 0.0}


async def test_the_scorer_of_the_page_scores() -> None:
    example("sampler.scorers")
    scores = [
        (await score_answer("near", ScoringRequest(answer, ("100",)))).value for answer in ("100.5", "103", "many")
    ]
    assert scores == [1, 0, 0]


def test_the_estimator_of_the_page_estimates_by_its_settings(tmp_path: Path) -> None:
    example("sampler.settlement")
    given = settings("sampler.settlement") | {"advantage_modules": []}
    config = SamplerConfig(run="r", db_connection_string="x", model_name_or_path=tmp_path, **given)
    group = [ScoredEpisode(f"r{k}", k, False, (ScoredTurn("a", None, ""), ScoredTurn("b", None, ""))) for k in range(3)]
    assert group_advantages(group, [0.0, 1.0, 3.0], config.group) == [(-0.9, -1.0), (0.0, 0.0), (1.8, 2.0)]


@pytest.mark.parametrize(("name", "aggregation"), [("soft_clip", None), ("plain", "token-sum")])
def test_the_losses_of_the_page_are_computed_by_their_settings(
    name: str, aggregation: str | None, tmp_path: Path
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS["trainer.losses"], re.DOTALL)
    (tmp_path / "losses_of_the_page.py").write_text(block)
    given = settings("trainer.losses") | {
        "loss_modules": [f"{tmp_path}/losses_of_the_page.py"],
        "loss": name,
    }
    config = TrainerConfig(
        run="r", db_connection_string="x", model_name_or_path=tmp_path, loss_aggregation=aggregation, **given
    )
    whole, denominators = batch(0)
    loss, outcome = compute(whole, denominators, config.loss)
    (gradient_E,) = torch.autograd.grad(loss, whole.new_logprob_E)
    assert gradient_E.isfinite().all()
    assert gradient_E.any()
    if name == "plain":
        assert torch.allclose(gradient_E, -whole.advantage_E / 60)
    else:
        assert outcome.too_high_E.any()


def test_the_normalization_of_the_page_normalizes() -> None:
    example("trainer.data")
    turns = [BatchTurn(f"d{k}", "r", "t", "s", 1.0, float(k), 5) for k in range(4)]
    assert NORMALIZATIONS.call("clipped", lambda found: "", turns) == [0.0, 1.0, 2.0, 2.0]
    assert settings("trainer.data")["advantage_normalization"] == "clipped"


async def test_documents_are_read_as_the_page_says(mongod: Mongod, store: Store) -> None:
    found = await example("shared.documents")["rewards"](mongod.connection_string, store.run)
    assert found == {}
