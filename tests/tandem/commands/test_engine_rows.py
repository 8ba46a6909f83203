"""`tandem status` splits the mismatch by engine where several sampled, and marks the one that is far from the others."""

from rich.console import Console

from shared.documents.run import Admission, InferenceService, TrainedStep
from shared.documents.states import ServiceStatus
from shared.store import Store
from tandem.commands.run_status import read_status
from tandem.commands.status_tables import lines_and_tables

LOCAL, VLLM = "http://127.0.0.1:4001", "http://127.0.0.1:4002"


async def step(store: Store, number: int, **engines: float) -> None:
    """{port: mismatch}, 400 tokens each."""
    identity = f"main:{number}:1"
    await store.steps.add(TrainedStep(id=identity, policy="main", step=number, trainer_generation=1, groups=[]))
    metrics = {"loss/mismatch_mean_nats": 0.01}
    for port, mismatch in engines.items():
        area = f"loss_by_engine/127.0.0.1:{port.removeprefix('port_')}"
        own = {"trained_tokens": 400.0, "mismatch_mean_nats": mismatch, "k3_mean": 0.001, "staleness_mean_steps": 0.5}
        metrics |= {f"{area}/{name}": value for name, value in own.items()}
    await store.steps.note_metrics(identity, metrics)


async def shown(store: Store) -> str:
    console = Console(record=True, width=300)
    console.print(*lines_and_tables(await read_status(store), every_worker=False), sep="\n")
    return console.export_text()


async def test_each_engine_has_its_mismatch_and_one_that_is_off_is_marked(store: Store) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=0))
    await store.versions.announce("main", 0, "/w/0", {})
    for url, kind, dtype in ((LOCAL, "local", "float32"), (VLLM, "vllm", "bfloat16")):
        service = InferenceService(
            id=url, url=url, policy="main", version=0, status=ServiceStatus.UP, kind=kind, dtype=dtype
        )
        await store.services.heartbeat(service)
    await step(store, 1)
    assert (await read_status(store)).mismatch_by_engine == []
    assert "mismatch by engine" not in await shown(store), "one engine: nothing more than ever"
    await step(store, 2, port_4001=0.001, port_4002=0.011)
    text = await shown(store)
    assert "mismatch by engine, last 10 steps" in text
    assert "OFF" not in text
    await step(store, 3, port_4001=0.001, port_4002=0.311, port_4003=0.001)
    rows = {row["engine"]: row for row in (await read_status(store)).mismatch_by_engine}
    assert [(row["kind"], row["dtype"], row["tokens"]) for row in rows.values()] == [
        ("local", "float32", 800),
        ("vllm", "bfloat16", 800),
        (None, None, 400),
    ]
    assert round(rows["127.0.0.1:4002"]["mismatch_mean_nats"], 3) == 0.161
    assert [name for name, row in rows.items() if row["limit"] is not None] == ["127.0.0.1:4002"]
    (line,) = (line for line in (await shown(store)).splitlines() if "OFF" in line)
    assert "127.0.0.1:4002" in line
    assert "bfloat16" in line
    assert "OFF: the others have 0.001" in line
