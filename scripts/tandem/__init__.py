"""`tandem`: import tasks; watch, pause and read a run; give feedback; evaluate, audit, trace, ask what-if; start a MongoDB.

Exit codes: 0 success, 1 a problem was found, the database does not answer or the output was lost, 2 wrong usage or input,
130 Ctrl-C. The commands themselves: `tandem.commands.application`, which is loaded after Ctrl-C has been taken care of.
"""

import sys
from typing import TYPE_CHECKING

from shared.lazy_names import lazy_names
from shared.processes.interrupt import begin_program, run_command

if TYPE_CHECKING:
    from tandem.commands.every import app

__all__ = ["app", "main"]
__getattr__ = lazy_names(__name__, {"app": "tandem.commands.every"})


def main() -> None:
    """The console script."""
    begin_program(is_command=True)
    run_command(_run)


def _run() -> None:
    from shared.processes.run_module import use_ours

    use_ours()
    from tandem.commands.application import application_for

    application_for(sys.argv[1:])()
