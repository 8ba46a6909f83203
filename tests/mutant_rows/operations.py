"""Protections of programs against their surroundings: signals, terminals, limits, proxies and ports."""

from tests.mutant_rows.mutant import Mutant

START = "tests/shared/test_program_start.py::"
MUTANTS = (
    Mutant(
        "Ctrl-C while a program loads is one line",
        "shared/processes/interrupt.py",
        "        signal.signal(signal.SIGINT, _end_at_once)\n",
        "        pass\n",
        f"{START}test_ctrl_c_while_a_program_loads_is_one_line_and_status_130",
    ),
    Mutant(
        "an ignored signal stays ignored",
        "shared/processes/signals.py",
        "if signal.getsignal(number) is not signal.SIG_IGN",
        "if signal.getsignal(number) is not None",
        f"{START}test_a_signal_that_the_parent_ignores_stays_ignored",
    ),
    Mutant(
        "a service outlives the reader of its output",
        "shared/processes/output.py",
        "        if self._tells_loss:\n            self._tells_loss = False\n",
        "        if True:\n            self._tells_loss = False\n",
        f"{START}test_output_that_nobody_reads_costs_a_service_nothing_and_ends_a_command",
    ),
    Mutant(
        "characters that a terminal lacks are replaced",
        "shared/processes/output.py",
        """errors="replace" if stream.errors == "strict" else stream.errors""",
        "errors=stream.errors",
        f"{START}test_a_character_that_a_terminal_lacks_is_replaced",
    ),
    Mutant(
        "no descriptor of a program is a standard one",
        "shared/processes/output.py",
        "    _open_standard_descriptors()\n    sys",
        "    sys",
        f"{START}test_output_that_nobody_reads_costs_a_service_nothing_and_ends_a_command",
    ),
    Mutant(
        "COLUMNS=0 is no size",
        "shared/processes/output.py",
        'r"0*[1-9][0-9]{0,5}"',
        'r".*"',
        f"{START}test_a_size_that_is_none_is_no_size",
    ),
    Mutant(
        "no program shows its environment",
        "shared/processes/interrupt.py",
        "    conceal_environment()\n",
        "",
        f"{START}test_no_process_shows_a_secret_in_its_arguments_or_environment",
    ),
    Mutant(
        "no program shows the value of a secret flag",
        "shared/processes/interrupt.py",
        "    conceal_arguments()\n",
        "",
        f"{START}test_no_process_shows_a_secret_in_its_arguments_or_environment",
    ),
    Mutant(
        "few open files are refused",
        "shared/processes/open_files.py",
        "if (most := allow_many_files()) < fewest:",
        "if (most := allow_many_files()) < 0:",
        f"{START}test_too_few_open_files_are_refused_at_once",
    ),
)
