"""A sampler whose tool server is unavailable: it waits, raises an alarm, counts no failure, and continues when it returns."""

from shared.documents.states import Termination
from shared.processes.mongod import free_port
from shared.store import Store
from tandem.commands.run_status import RunStatus, read_status
from tests.sampler.boxes import PATIENCE_S, start_box
from tests.sampler.running import running_sampler, until
from tests.shared.builders import import_tasks


async def test_a_sampler_waits_for_an_unavailable_tool_server_with_an_alarm_and_without_counting_failures(
    store: Store,
) -> None:
    await import_tasks(store, 8, num_generations=8)
    port = free_port()
    options = {"mcp_manager_url": f"http://127.0.0.1:{port}/mcp", "tool_open_s": PATIENCE_S, "tool_wait_s": 0.1}
    options |= {"max_opening_sessions": 4, "max_failures": 1}

    async def now() -> RunStatus:
        return await read_status(store)

    async with running_sampler(store, **options, poll_s=0.02, heartbeat_s=0.05):
        seen = await until(now, lambda seen: seen.workers and seen.workers[0]["alarms"])
        (alarm,) = seen.workers[0]["alarms"]
        assert "no session with tool server manager" in alarm
        assert "ConnectError" in alarm
        gone = {"termination": Termination.TOOL_SERVER_AWAY.value}
        await until(lambda: store.database["records"].count_documents(gone), bool)
        await until(now, lambda seen: seen.workers[0]["stats"]["given_back"])
        seen = await until(
            now, lambda seen: "for tool server manager: no call" in seen.workers[0]["doing"]
        )  # it tries at times
        assert seen.workers[0]["stats"]["failed"] == 0
        assert (seen.failed_attempts, seen.slots["train"]["failures"]) == ([], 0)
        box = start_box("--port", str(port))
        try:
            await until(store.tasks.count_slots, lambda counts: counts.get("scored") == 64)
            idle = "for a task: no task left to open; until more are imported"
            await until(now, lambda seen: seen.workers[0]["doing"].endswith(idle))
            away = "no session with tool server"  # what its episodes scored may be an alarm, too
            await until(now, lambda seen: not any(away in alarm for alarm in seen.workers[0]["alarms"]))
            seen = await now()
            assert seen.slots["train"]["failures"] == 0
            assert await store.database["records"].count_documents(gone) < 64, "one slot at a time was claimed"
        finally:
            box.kill()
