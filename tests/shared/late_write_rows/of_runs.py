"""Late writes to what a run has once: its document, settings, steps, versions, services and leases."""

import numpy as np

from shared.documents.images import MAX_INLINE_BYTES
from shared.documents.notes import Note
from shared.documents.offers import BroadcastOffer, Joined
from shared.documents.packed import pack_floats
from shared.documents.routed_experts import pack_experts
from shared.documents.rules import RunRules
from shared.documents.run import Admission, SavedCheckpoint, TrainedStep, TrainerEnd, step_id
from shared.documents.states import LeaseKind, OfferState
from shared.documents.trainer_logprobs import TrainerLogprobs, TurnLogprobs, trainer_logprobs_id
from shared.rules.run_rules import Rules
from shared.store import Store
from tests.shared.episodes import SCHEMAS, announce
from tests.shared.image_files import image_file
from tests.shared.late_write_rows.rows import Late, row

ADMISSION = Admission(groups_per_step=1, max_staleness=0)
OFFER = BroadcastOffer(
    address="a", port=1, group="g", backend="gloo", bucket_bytes=1, join_s=1, limit_s=1, state=OfferState.OPEN
)


@row("runs.ensure")
async def _(store: Store, late: Late) -> None:
    await late(store.runs.ensure())
    await store.runs.start_trainer("main", ADMISSION)


@row("resettling.claim_settings")
async def _(store: Store, late: Late) -> None:
    await late(store.resettling.claim_settings("resettle", "first"))
    await store.resettling.claim_settings("resettle", "second")
    assert (await store.runs.read()).settings == {"resettle": "first"}
    await store.runs.note_settings("sampler", "first")


@row("rules.add")
async def _(store: Store, late: Late) -> None:
    """Of two that write the same number, the first one's counts; and a later number stays the newest."""
    sections = {
        advantage: Rules(template_digest="", advantage=advantage).sections() for advantage in ("zscore", "mean")
    }
    first = RunRules.of("main", 1, sections["zscore"], "first")
    await late(store.rules.add(first))
    found = await store.rules.add(RunRules.of("main", 1, sections["mean"], "second"))
    assert found.sections == first.sections
    await store.rules.add(RunRules.of("main", 2, sections["mean"], "a person"))


@row("runs.start_trainer")
async def _(store: Store, late: Late) -> None:
    await late(
        store.runs.start_trainer("main", ADMISSION, checkpoint=SavedCheckpoint(step=2, folder="x"), settings="first")
    )
    await store.runs.start_trainer("main", ADMISSION, settings="second")


@row("runs.end_trainer")
async def _(store: Store, late: Late) -> None:
    """The one that goes on has ended too: what is told of the first comes late."""
    for trainer_generation in (1, 2):
        await store.runs.start_trainer("main", ADMISSION)
        await late(
            store.runs.end_trainer(
                "main", TrainerEnd(trainer_generation=trainer_generation, step=2, reason="told to stop")
            )
        )
    await store.runs.start_trainer("main", ADMISSION)


@row("tool_schemas.keep")
async def _(store: Store, late: Late) -> None:
    await late(store.tool_schemas.keep(SCHEMAS))


@row("images.keep")
async def _(store: Store, late: Late) -> None:
    """One in its document, and one in chunks."""
    files = [image_file(b"$5"), image_file(bytes(MAX_INLINE_BYTES + 1))]
    await late(store.images.keep(files))
    for file in files:
        assert await store.images.read(file.sha256) == file.data


@row("routed_experts.keep")
async def _(store: Store, late: Late) -> None:
    packed = pack_experts(np.arange(12).reshape(3, 4), 0)
    await late(store.routed_experts.keep(packed))
    assert list(await store.routed_experts.read([packed.described])) == [packed.described.sha256]


@row("settings.keep")
async def _(store: Store, late: Late) -> None:
    await late(store.settings.keep("sampler", {"temperature": 1.0}, "first"))
    await store.settings.keep("sampler", {"temperature": 0.5}, "second")
    await store.settings.keep("sampler", {"temperature": 1.0}, "third")


@row("steps.note_metrics")
async def _(store: Store, late: Late) -> None:
    """The step is taken again, by the next start."""
    for trainer_generation in (1, 2):
        identity = step_id("main", 1, trainer_generation)
        await store.steps.add(
            TrainedStep(id=identity, policy="main", step=1, trainer_generation=trainer_generation, groups=[])
        )
        await late(store.steps.note_metrics(identity, {"loss/loss": 0.5 * trainer_generation}))


@row("trainer_logprobs.keep")
async def _(store: Store, late: Late) -> None:
    """The step is taken again, by the next start: each start has documents of its own."""
    for trainer_generation in (1, 2):
        turn = TurnLogprobs(turn=0, first=2, logprobs=pack_floats([-0.5 * trainer_generation]), marks=b"\1")
        kept = TrainerLogprobs(
            id=trainer_logprobs_id("a", 1, trainer_generation),
            data="a",
            record="a",
            policy="main",
            step=1,
            trainer_generation=trainer_generation,
            turns=[turn],
            largest_difference=0.1 * trainer_generation,
            largest_turn=0,
            largest_place=2,
        )
        await late(store.trainer_logprobs.keep([kept]))


@row("notes.add")
async def _(store: Store, late: Late) -> None:
    """It was removed meanwhile: a late repetition brings nothing back."""
    await late(store.notes.add(Note(id="n", record="r", text="$5 for the second call", author="Ada")))
    assert [note.text for note in await store.notes.of("r")] == ["$5 for the second call"]
    await store.notes.remove("n")


@row("notes.remove")
async def _(store: Store, late: Late) -> None:
    await store.notes.add(Note(id="n", record="r", text="wrong"))
    assert await late(store.notes.remove("n"))
    assert await store.notes.of("r") == await store.notes.newest() == []
    await store.notes.add(Note(id="m", record="r", text="another"))


@row("runs.note_checkpoint")
async def _(store: Store, late: Late) -> None:
    trainer_generation = await store.runs.start_trainer("main", ADMISSION)
    await late(store.runs.note_checkpoint("main", trainer_generation, SavedCheckpoint(step=2, folder="x")))
    await store.runs.note_checkpoint("main", trainer_generation, SavedCheckpoint(step=4, folder="x"))


@row("versions.announce", "versions.ensure_first", "versions.mark_pruned")
async def _(store: Store, late: Late) -> None:
    await late(store.versions.ensure_first("main", "/first", {}))
    await late(announce(store, 1))
    await announce(store, 2)
    await late(store.versions.mark_pruned("main", [1]))


@row("versions.fence", "versions.withdraw_after")
async def _(store: Store, late: Late) -> None:
    for step in range(3):
        await announce(store, step)
    await late(store.versions.fence("main", 2, 1))
    await late(store.versions.withdraw_after("main", 1, 2))
    await store.versions.announce("main", 2, "/again", {}, trainer_generation=2)


@row("versions.join_broadcast", "versions.close_broadcast", "versions.end_broadcast", "versions.fail_broadcasts")
async def _(store: Store, late: Late) -> None:
    for number in range(2):
        await store.versions.announce("main", number, f"/{number}", {}, offer=OFFER, trainer_generation=1)
        await late(store.versions.join_broadcast("main", number, Joined(service=f"e{number}", ranks=1)))
    await late(store.versions.close_broadcast("main", 0))
    await late(store.versions.end_broadcast("main", 0, OfferState.SENT))
    await late(store.versions.fail_broadcasts("main", 2))
    await store.versions.announce("main", 2, "/2", {}, offer=OFFER, trainer_generation=2)


@row(
    *("leases.ensure", "leases.claim", "leases.take", "leases.release"),
    *("leases.occupy", "leases.confirm", "leases.wake"),
)
async def _(store: Store, late: Late) -> None:
    """The device has gone to a second holder, for whom the engine sleeps again."""
    device = (await late(store.leases.ensure(LeaseKind.GPU, "h:0"))).id
    await late(store.leases.occupy(device, "keeper", "http://e", 600, asleep=True))
    await late(store.leases.wake(device, "keeper", 0, 600))
    for holder in ("first", "second"):
        claim = await late(store.leases.claim(device, holder, 600))
        await late(store.leases.confirm(device, "keeper", claim.attempt))
        await late(store.leases.take(claim))
        if holder == "first":
            await late(store.leases.release(claim))
            await late(store.leases.wake(device, "keeper", claim.attempt, 600))


@row("leases.leave")
async def _(store: Store, late: Late) -> None:
    """The keeper has been started again."""
    device = (await store.leases.ensure(LeaseKind.GPU, "h:0")).id
    await store.leases.occupy(device, "keeper 1", "http://e", 600, asleep=False)
    await late(store.leases.leave(device, "keeper 1"))
    await store.leases.occupy(device, "keeper 2", "http://e", 600, asleep=False)
