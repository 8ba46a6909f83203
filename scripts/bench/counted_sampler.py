"""`python -m sampler`, counting its work: the counts stand in the file COUNTS_FILE, as JSON, when it ends.

    commands, bytes, documents   sent to the collections of episodes, their BSON, and documents read from them
    rendered, encoded            characters that the chat template wrote, and that the tokenizer encoded
    encodings, long_encodings    texts that were encoded on the event loop, and those that took a millisecond or more of it
    longest_us                   of them, in processor time

What the clock sends (workers, engines, the run's state) is not counted: it does not depend on the work.
"""

import atexit
import json
import os
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import bson
from pymongo import monitoring

from sampler.__main__ import main
from sampler.core.rendering.resumed import RenderMemory
from sampler.core.rendering.template import ChatTemplate, Message, ToolSchema
from shared.processes.interrupt import run_command

COLLECTIONS = ("tasks", "records", "dispatched_sampling_tasks", "record_data")
COUNTS_FILE = "COUNTS_FILE"
COUNTED = ("find", "update", "findAndModify", "insert", "aggregate")
LONG_US = 1000
COUNTS: Counter[str] = Counter()


class CommandCount(monitoring.CommandListener):
    """Of every client of this process."""

    def __init__(self) -> None:
        self._requests: set[int] = set()  # counted, in flight

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name in COUNTED and event.command[event.command_name] in COLLECTIONS:
            COUNTS["commands"] += 1
            COUNTS["bytes"] += len(bson.encode(event.command))
            self._requests.add(event.request_id)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        if event.request_id in self._requests:
            self._requests.discard(event.request_id)
            COUNTS["documents"] += len(event.reply.get("cursor", {}).get("firstBatch", ()))

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        self._requests.discard(event.request_id)


def count_text() -> None:
    """Of every template of this process."""
    render, encode, encode_plain = ChatTemplate.render_prepared, ChatTemplate.encode, ChatTemplate.encode_plain

    def rendered(
        template: ChatTemplate,
        marked: "list[Message]",
        tools: "list[ToolSchema] | None",
        is_open: bool = False,
        now: datetime | None = None,
        memory: RenderMemory | None = None,
    ) -> str:
        text = render(template, marked, tools, is_open, now, memory)
        COUNTS["rendered"] += len(text) - (memory.skipped if memory is not None else 0)
        return text

    def counted(work: Any) -> Any:
        def encoded(template: ChatTemplate, text: str) -> Any:
            COUNTS["encoded"] += len(text)
            began = time.thread_time_ns()
            ids = work(template, text)
            if threading.current_thread() is threading.main_thread():
                took_us = (time.thread_time_ns() - began) // 1000
                COUNTS["encodings"] += 1
                COUNTS["long_encodings"] += took_us >= LONG_US
                COUNTS["longest_us"] = max(COUNTS["longest_us"], took_us)
            return ids

        return encoded

    for name, method in {
        "render_prepared": rendered,
        "encode": counted(encode),
        "encode_plain": counted(encode_plain),
    }.items():
        setattr(ChatTemplate, name, method)


if __name__ == "__main__":
    path = Path(os.environ[COUNTS_FILE])
    monitoring.register(CommandCount())
    count_text()
    atexit.register(lambda: path.write_text(json.dumps(COUNTS)))
    run_command(main)
