"""The end of a child process that answers questions over its pipes."""

from asyncio.subprocess import Process


async def end_child(process: Process | None) -> None:
    """Kill it, wait for it and close its pipes; nothing to do where there is none."""
    if process is None:
        return
    if process.returncode is None:
        process.kill()
    await process.wait()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()  # asyncio would keep it open until it is collected, and warn then
