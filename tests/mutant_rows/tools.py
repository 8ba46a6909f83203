"""Protections of episodes' tools: ends of a server's processes, and the process that episodes share."""

from tests.mutant_rows.mutant import Mutant

MUTANTS = (
    Mutant(
        "tools: a server whose process an episode ends is started again only so often",
        "sampler/core/tools/link.py",
        "        is_over = len(self.own_ends) > self._limits.max_restarts\n",
        "        is_over = False\n",
        "tests/sampler/test_own_ends.py::test_a_server_is_started_again_only_so_often_and_then_its_calls_are_errors",
    ),
    Mutant(
        "tools: the end of a shared process is never told to a model as its own act",
        "sampler/core/tools/shared_process.py",
        '            died.ended = ""  # not',
        "            # not",
        "tests/sampler/test_shared_process.py::test_its_end_is_a_failure_of_the_server_and_never_an_act_of_the_model",
    ),
    Mutant(
        "tools: a shared process that has ended is replaced",
        "sampler/core/tools/shared_process.py",
        "            self._process.replace(running)\n            raise\n        except ToolTimeout",
        "            raise\n        except ToolTimeout",
        "tests/sampler/test_shared_process.py::test_its_end_is_a_failure_of_the_server_and_never_an_act_of_the_model",
    ),
    Mutant(
        "tools: a shared process that still answers outlives a slow call",
        "sampler/core/tools/shared_process.py",
        "if not await running.connection.lives():",
        "if True:",
        "tests/sampler/test_shared_process.py::test_a_slow_call_ends_no_process_that_still_answers",
    ),
    Mutant(
        "tools: a shared process that answers nothing is ended",
        "sampler/core/tools/shared_process.py",
        "if not await running.connection.lives():",
        "if False:",
        "tests/sampler/test_shared_process.py::test_a_process_that_answers_nothing_is_ended_for_all_and_replaced",
    ),
    Mutant(
        "tools: the opening of a shared process goes on for the others",
        "sampler/core/tools/shared_process.py",
        "await asyncio.shield(running.opening)",
        "await running.opening",
        "tests/sampler/test_shared_process.py::test_the_opening_goes_on_for_the_others_when_the_first_episode_is_cancelled",
    ),
    Mutant(
        "tools: processes that end together are the machine's failure",
        "sampler/core/tools/own_ends.py",
        "        return together < TOGETHER or",
        "        return True or",
        "tests/sampler/test_own_ends.py::test_processes_that_end_together_are_the_machines_failure",
    ),
)
