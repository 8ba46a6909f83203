"""A workspace of files: `python -m sampler.mcp_docker.tools.files [FOLDER]`, by default the session's folder."""

import os
import re
import stat
import sys
import time
from collections.abc import Sequence

from sampler.mcp_docker.tools.beneath import BeneathFolder
from sampler.mcp_docker.tools.serving import (
    BundledServer,
    BundledTool,
    ToolArguments,
    ToolRefusal,
    argument,
    run,
    server_of,
)

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_LISTED = 1_000
MAX_MATCHES = 200
_SEARCH_S = 20.0
_SHOWN_CHARS = 300
_PATH = argument(description="relative to the workspace", max_length=4096)


class ReadArguments(ToolArguments):
    path: str = _PATH
    first_line: int = argument(1, description="line to begin with", ge=1)
    lines: int = argument(500, description="how many lines", ge=1, le=5_000)


class WriteArguments(ToolArguments):
    path: str = _PATH
    content: str = argument(description="the whole new content", max_length=MAX_FILE_BYTES)


class ListArguments(ToolArguments):
    path: str = argument(".", description="a folder, relative to the workspace", max_length=4096)
    levels: int = argument(1, description="of folders below it that are listed too", ge=1, le=20)


class EditArguments(ToolArguments):
    path: str = _PATH
    old: str = argument(description="text that occurs exactly once in the file", min_length=1)
    new: str = argument(description="the text that takes its place")


class SearchFilesArguments(ToolArguments):
    text: str = argument(description="text to be found, upper and lower case alike", min_length=1, max_length=1_000)
    path: str = argument(".", description="a folder, relative to the workspace", max_length=4096)


class Workspace:
    """The tools' functions over one folder."""

    def __init__(self, folder: str) -> None:
        self._beneath = BeneathFolder(folder)

    def read(self, arguments: ReadArguments) -> str:
        lines = self._text(arguments.path).splitlines()
        chosen = lines[arguments.first_line - 1 : arguments.first_line - 1 + arguments.lines]
        last = arguments.first_line + len(chosen) - 1
        rest = f"\n[lines {arguments.first_line} to {last} of {len(lines)}]" if len(chosen) < len(lines) else ""
        return "\n".join(chosen) + rest

    def write(self, arguments: WriteArguments) -> str:
        self._put(arguments.path, arguments.content)
        return f"{arguments.path}: {len(arguments.content)} characters"

    def edit(self, arguments: EditArguments) -> str:
        text = self._text(arguments.path)
        count = text.count(arguments.old)
        if count != 1:
            raise ToolRefusal(f"{arguments.path}: the text occurs {count} times; expected once")
        self._put(arguments.path, text.replace(arguments.old, arguments.new))
        return f"{arguments.path}: replaced"

    def entries(self, arguments: ListArguments) -> str:
        rows: list[str] = []
        for path, status in self._beneath.walk(arguments.path, arguments.levels):
            if len(rows) == MAX_LISTED:
                rows.append(f"[more than {MAX_LISTED} entries]")
                break
            rows.append(f"{path}{_kind(status)}")
        return "\n".join(rows) or "[empty]"

    def search(self, arguments: SearchFilesArguments) -> str:
        pattern = re.compile(re.escape(arguments.text), re.IGNORECASE)
        end = time.monotonic() + _SEARCH_S
        rows: list[str] = []
        for path, status in self._beneath.walk(arguments.path, 20):
            if time.monotonic() > end or len(rows) >= MAX_MATCHES:
                rows.append("[not all files were searched]")
                break
            if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES:
                rows += self._matches(path, pattern)[: MAX_MATCHES - len(rows)]
        return "\n".join(rows) or "[no match]"

    def _matches(self, path: str, pattern: re.Pattern[str]) -> list[str]:
        try:
            lines = self._text(path).splitlines()
        except ToolRefusal:
            return []
        return [f"{path}:{at}: {line[:_SHOWN_CHARS]}" for at, line in enumerate(lines, 1) if pattern.search(line)]

    def _text(self, path: str) -> str:
        opened = self._beneath.open(path, os.O_RDONLY)
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            os.close(opened)
            raise ToolRefusal(f"{path}: is a folder")
        with os.fdopen(opened, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ToolRefusal(f"{path}: is larger than {MAX_FILE_BYTES} bytes")
        if b"\0" in content[:8192]:
            raise ToolRefusal(f"{path}: is not text")
        return content.decode("utf-8", "replace")

    def _put(self, path: str, text: str) -> None:
        opened = self._beneath.open(path, os.O_WRONLY | os.O_CREAT, make_folders=True)
        with os.fdopen(opened, "wb") as file:
            if os.fstat(opened).st_nlink != 1:
                raise ToolRefusal(f"{path}: has another name too (a hard link), which would change with it")
            try:
                file.truncate(0)
                file.write(text.encode())
                file.flush()
            except OSError as exc:
                raise ToolRefusal(f"{path}: {exc.strerror}") from exc


def _kind(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "/"
    return f"  {status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "  [not a regular file]"


def tool_server(arguments: Sequence[str] = ()) -> BundledServer:
    space = Workspace(arguments[0] if arguments else ".")
    return server_of(
        "files",
        [
            BundledTool("read", "Reads lines of a text file.", ReadArguments, space.read),
            BundledTool("write", "Writes a text file, and the folders above it.", WriteArguments, space.write),
            BundledTool("list", "Lists a folder.", ListArguments, space.entries),
            BundledTool("edit", "Replaces a text that occurs once in a file.", EditArguments, space.edit),
            BundledTool("search", "Finds lines with a text in all files.", SearchFilesArguments, space.search),
        ],
    )


if __name__ == "__main__":
    run(tool_server(sys.argv[1:]))
