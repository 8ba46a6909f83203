"""Ends a child process that communicates over pipes."""

from asyncio.subprocess import Process


async def end_child(process: Process | None) -> None:
    """Kill it, wait for it and close its pipes. No effect for None."""
    if process is None:
        return
    if process.returncode is None:
        process.kill()
    await process.wait()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()  # otherwise asyncio keeps it open until garbage collection, and warns
