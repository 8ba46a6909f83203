"""The process in which the tool `python` runs code: `python python_worker.py CODE DONE TOKEN`, two descriptors and a text.

It writes the token to DONE when it waits for code, reads one JSON object with code and the next token from CODE, and runs it.
The code can write to DONE, too: what is no token says nothing. Standard library only.
"""

import ast
import contextlib
import json
import os
import signal
import sys
import traceback
from types import CodeType
from typing import Any


def main() -> None:
    code, done, token = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.set_inheritable(code, False)
    os.set_inheritable(done, False)
    sys.argv = [""]
    sys.path[0] = os.getcwd()
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    with open(code, encoding="utf-8", closefd=False) as lines:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # one that comes after the code has ended
                signal.signal(signal.SIGINT, signal.default_int_handler)  # the code may have changed it
                os.write(done, f"{token}\n".encode())
                line = lines.readline()
                if not line:
                    return
                request = json.loads(line)
                token = request["token"]
                run(request["code"], names)
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()


def run(text: str, names: dict[str, Any]) -> None:
    try:
        for code, shown in parts(text):
            value = eval(code, names)
            if shown and value is not None:
                names["_"] = value
                print(repr(value))
    except SystemExit as exc:
        print(f"SystemExit: {exc.code}")
    except BaseException as exc:  # noqa: BLE001 - the model's code raised it; an interrupt is its time-out
        frame = exc.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
            frame = frame.tb_next
        traceback.print_exception(type(exc), exc, frame, file=sys.stdout)


def parts(text: str) -> list[tuple[CodeType, bool]]:
    """The code, and apart from it a last expression, whose value is shown."""
    tree = ast.parse(text, "<code>")
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return [(compile(tree, "<code>", "exec"), False)]
    before = ast.Module(tree.body[:-1], tree.type_ignores)
    return [
        (compile(before, "<code>", "exec"), False),
        (compile(ast.Expression(last.value), "<code>", "eval"), True),
    ]


if __name__ == "__main__":
    main()
