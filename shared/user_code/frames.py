"""Finds the line of a user's code that raised an exception.

    AttributeError: 'Turn' object has no attribute 'txt'; at my/sampler.py:12, in run: return turn.txt

A frame is the user's if its file belongs neither to this project nor to Python or an installed library, or if it is in the
file or package of `home`: the user's class or function, which may be installed too.
"""

import asyncio
import inspect
import linecache
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from shared.errors import OwnCodeFailed, TandemError
from shared.outside_text import clipped, error_text

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("sampler", "shared", "trainer", "scripts")
_OURS = tuple(f"{_ROOT / name}/" for name in _PACKAGES)
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_INSTALLED = ("/site-packages/", "/dist-packages/")
FILE_MODULE = "own_file_"  # prefix of the names of modules loaded from files
MAX_LINE_CHARS = 160
MAX_MESSAGE_CHARS = 500


def told(exc: BaseException, home: Any = None) -> str:
    """Type and message in one line, with the user's line if there is one."""
    exc = cause_of(exc)
    message = " ".join(error_text(exc, MAX_MESSAGE_CHARS).split())
    place = place_of(exc, home)
    return f"{message}; at {place}" if place else message


def user_code_error(exc: BaseException, home: Any) -> OwnCodeFailed | None:
    """The error to raise instead of `exc` if the user's code raised it; None for our errors and cancellations."""
    cause = cause_of(exc)
    if isinstance(cause, TandemError | asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return None
    return OwnCodeFailed(f"{name_of(home)}: {told(cause, home)}") if place_of(cause, home) else None


def cause_of(exc: BaseException) -> BaseException:
    """The exception of a group to report: programming errors take precedence over infrastructure failures."""
    while isinstance(exc, BaseExceptionGroup):
        inner: list[BaseException] = list(exc.exceptions)
        exc = next((one for one in inner if not isinstance(cause_of(one), TandemError)), inner[0])
    return exc


def place_of(exc: BaseException, home: Any = None) -> str:
    """`FILE:LINE, in FUNCTION: source line` of the innermost user line; empty if there is none."""
    if isinstance(exc, SyntaxError) and exc.filename and exc.lineno:
        return f"{_shown(exc.filename)}:{exc.lineno}: {_source(exc.filename, exc.lineno) or (exc.text or '').strip()}"
    own = [(frame, line) for frame, line in traceback.walk_tb(exc.__traceback__) if _is_own(frame, home)]
    if not own:
        return ""
    frame, line = own[-1]
    code = frame.f_code
    return f"{_shown(code.co_filename)}:{line}, in {code.co_name}: {_source(code.co_filename, line)}"


def definition_of(function: Any) -> str:
    """`; at FILE:LINE: source line` of a function's definition; empty if unknown."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code is None:
        return ""
    line = code.co_firstlineno
    while _source(code.co_filename, line).startswith("@"):
        line += 1
    return f"; at {_shown(code.co_filename)}:{line}: {_source(code.co_filename, line)}"


def name_of(home: Any) -> str:
    """`module:Class` or `FILE.py:Class`, as in options."""
    module = str(getattr(home, "__module__", "?"))
    if module.startswith(FILE_MODULE):
        module = _shown(_file_of(home))
    return f"{module}:{getattr(home, '__qualname__', home)}"


def is_ours(home: Any) -> bool:
    """Whether `home` is part of this project."""
    return _file_of(home).startswith(_OURS)


def _is_own(frame: FrameType, home: Any) -> bool:
    file = frame.f_code.co_filename
    if file.startswith("<"):
        return False
    if home is not None and not is_ours(home) and _is_of_home(frame, home):
        return True
    path = str(Path(file).resolve())
    return not path.startswith((*_OURS, *_LIBRARIES)) and not any(part in path for part in _INSTALLED)


def _is_of_home(frame: FrameType, home: Any) -> bool:
    package = str(getattr(home, "__module__", "")).partition(".")[0]
    return (
        frame.f_code.co_filename == _file_of(home) or str(frame.f_globals.get("__name__")).partition(".")[0] == package
    )


def _file_of(home: Any) -> str:
    return str(getattr(sys.modules.get(getattr(home, "__module__", "")), "__file__", None) or "")


def _source(file: str, line: int) -> str:
    return clipped(linecache.getline(file, line).strip(), MAX_LINE_CHARS)


def _shown(file: str) -> str:
    """The path, relative to the working directory if below it."""
    path = Path(file).resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
