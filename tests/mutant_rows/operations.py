"""Protections of programs against their surroundings: signals, terminals, limits, proxies and ports."""

from tests.mutant_rows.mutant import Mutant

START = "tests/shared/test_program_start.py::"
COMMANDS = "tests/shared/cli/test_surroundings_of_commands.py::"
EXPORT = "tests/shared/traces/test_export.py::"
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
    Mutant(
        "a cancellation over a cursor arrives",
        "shared/store/connecting.py",
        "    let_cancellations_arrive()\n",
        "",
        "tests/shared/test_cancellation.py::test_a_cancellation_that_arrives_with_the_answer_ends_the_work",
    ),
    Mutant(
        "a running server is known by any spelling of its folder",
        "shared/processes/mongod.py",
        "        return open_file.samefile(lock)",
        "        return str(open_file.readlink()) == str(lock)",
        "tests/shared/test_mongod.py::test_a_running_server_is_known_by_any_spelling_of_its_folder",
    ),
    Mutant(
        "another server's answer is not the started one's",
        "shared/processes/mongod.py",
        """.get("pid") == self.process.pid:""",
        """.get("pid"):""",
        "tests/shared/test_mongod.py::test_another_server_that_answers_at_its_port_is_not_taken_for_it",
    ),
    Mutant(
        "a command of no run finds the server that runs here",
        "shared/cli/connect.py",
        "    if run is None and (running := _running_here()):",
        "    if run == '' and (running := _running_here()):",
        f"{COMMANDS}test_a_command_of_no_run_finds_the_server_that_runs_here",
    ),
    Mutant(
        "names that differ in case alone are one line",
        "shared/store/connecting.py",
        "failure.code == DIFFERS_IN_CASE_ALONE",
        "failure.code == -1",
        f"{COMMANDS}test_two_names_that_differ_in_case_alone_are_one_line",
    ),
    Mutant(
        "texts of megabytes are cut",
        "shared/cli/long_texts.py",
        "if prints_whole.get() or len(text) <= MOST_CHARS:",
        "if True:",
        f"{COMMANDS}test_texts_of_megabytes_are_cut_with_the_option_that_prints_all",
    ),
    Mutant(
        "OTLP: a long wait is left",
        "shared/traces/otlp.py",
        "            if wait_s > LONGEST_WAIT_S:\n",
        "            wait_s = min(wait_s, 0.1)\n            if wait_s > LONGEST_WAIT_S:\n",
        f"{EXPORT}test_a_receiver_that_asks_for_a_long_wait_is_left_with_a_sentence",
    ),
    Mutant(
        "OTLP: an echoed key is hidden",
        "shared/traces/otlp.py",
        "        self._secrets = _secrets(headers.values())",
        "        self._secrets = _secrets([])",
        f"{EXPORT}test_a_receiver_that_echoes_a_header_shows_no_key",
    ),
    Mutant(
        "OTLP: a record with a time before 1970 is left out",
        "shared/traces/otlp.py",
        "        except (ValueError, OverflowError, TypeError) as exc:  # a time before",
        "        except (KeyError,) as exc:  # a time before",
        f"{EXPORT}test_a_record_that_otlp_cannot_hold_is_left_out_and_named",
    ),
    Mutant(
        "loopback goes direct",
        "shared/http/outgoing.py",
        "    direct = [urllib.request.ProxyHandler({})] if is_loopback_url(url) else []",
        "    direct = []",
        f"{EXPORT}test_loopback_goes_direct_and_another_proxy_is_named",
    ),
    Mutant(
        "servers listen on IPv6 too",
        "shared/http/listening.py",
        "return socket.create_server(address[:2], family=family, backlog=backlog)",
        "return socket.create_server(address[:2], backlog=backlog)",
        "tests/shared/test_listening.py::test_a_server_listens_at_a_loopback_address_of_either_kind",
    ),
)
