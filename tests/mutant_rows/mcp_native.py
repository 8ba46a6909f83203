"""Protections of MCP-Docker from servers of 2026-07-28, and from servers that hang."""

from tests.mutant_rows.mutant import Mutant

AWAY = "tests/sampler/mcp_docker/test_gateway_native_away.py"
FAULTS = "tests/sampler/mcp_docker/test_gateway_native_faults.py"
GONE = "tests/sampler/mcp_docker/test_gateway_gone.py"
NATIVE = "tests/sampler/mcp_docker/test_gateway_native.py"

MUTANTS = (
    Mutant(
        "outdated headers are made from a new list",
        "sampler/mcp_docker/modern_link.py",
        "            self._header_maps = {}  # they may be of an older list\n",
        "",
        f"{AWAY}::test_after_a_call_with_outdated_headers_the_list_is_asked_for_again",
    ),
    Mutant(
        "a resource is kept for a listening stream that is being opened",
        "sampler/mcp_docker/modern_session.py",
        "            async with asyncio.timeout(ASK_S), self._subscribing:\n                still =",
        "            async with asyncio.timeout(ASK_S):\n                still =",
        f"{FAULTS}::test_a_resource_that_one_stream_leaves_is_kept_for_one_that_is_being_opened",
    ),
    Mutant(
        "a server of 2026-07-28 that was away is found again",
        "sampler/mcp_docker/channel.py",
        "PatientClient if has_sessions else",
        "PatientClient if True else",
        f"{AWAY}::test_a_server_that_was_away_for_a_moment_is_found_again",
    ),
    Mutant(
        "a connection that breaks within an answer is the end of one call",
        "sampler/mcp_docker/stateless.py",
        "            found = self._error(exc)\n",
        "            raise\n",
        f"{AWAY}::test_a_broken_connection_is_the_end_of_one_call",
    ),
    Mutant(
        "a question that is no longer awaited is cancelled at its server",
        "sampler/mcp_docker/server_link.py",
        '            if method != "initialize":',
        "            if False:",
        f"{AWAY}::test_a_question_that_is_no_longer_awaited_gives_its_connection_back",
    ),
    Mutant(
        "a server that is gone keeps the names of its tools",
        "sampler/mcp_docker/offers.py",
        "{**self.entries.get(method, {}), **answered}",
        "answered",
        f"{GONE}::test_a_list_that_is_asked_again_does_not_forget_a_server_that_is_gone",
    ),
    Mutant(
        "an unknown name may be of a server that was gone before its first list",
        "sampler/mcp_docker/routing.py",
        "if link.name not in self._own.entries[method]:",
        "if False:",
        f"{GONE}::test_a_server_that_is_gone_before_its_first_list_is_a_failure_of_infrastructure",
    ),
    Mutant(
        "a server's state leads the repeated call to the set that made it",
        "sampler/mcp_docker/modern_session.py",
        "        self._awaits_repetition = True\n",
        "",
        f"{NATIVE}::test_a_state_leads_to_the_process_that_made_it",
    ),
    Mutant(
        "a set has an id of its own for a server without sessions",
        "sampler/mcp_docker/servers.py",
        "episode = secrets.token_urlsafe(_EPISODE_BYTES)",
        'episode = "the same for all sets of this gateway"',
        f"{NATIVE}::test_a_set_has_an_id_of_its_own",
    ),
    Mutant(
        "a server that asks for input for ever",
        "sampler/mcp_docker/input_rounds.py",
        "if known.rounds > MAX_ROUNDS:",
        "if False:",
        f"{NATIVE}::test_a_server_that_asks_for_ever_is_not_asked_for_ever",
    ),
    Mutant(
        "the questions of a cancelled call are withdrawn",
        "sampler/mcp_docker/input_rounds.py",
        "        if known is not None and known.task is not None:\n            known.task.cancel()\n",
        "",
        f"{NATIVE}::test_a_call_is_cancelled_while_its_client_is_asked",
    ),
    Mutant(
        "a server's changes are heard again after their stream has ended",
        "sampler/mcp_docker/server_changes.py",
        "            self._reopening = asyncio.ensure_future(self._reopen())\n",
        "            pass\n",
        f"{NATIVE}::test_changes_are_heard_again_after_a_stream_has_ended",
    ),
    Mutant(
        "a server that does not answer about changes starts",
        "sampler/mcp_docker/server_changes.py",
        "asyncio.timeout(LISTEN_S)",
        "asyncio.timeout(None)",
        f"{NATIVE}::test_a_server_that_does_not_answer_about_changes_starts_nevertheless",
    ),
    Mutant(
        "headers repeat the arguments that a server of 2026-07-28 asks for",
        "sampler/mcp_docker/modern_link.py",
        "            headers |= mcp_param_headers(self._header_maps.get(name, {}), given)\n",
        "",
        f"{NATIVE}::test_arguments_are_repeated_in_headers",
    ),
    Mutant(
        "a stream of changes that ended as soon as it began is opened again",
        "sampler/mcp_docker/server_changes.py",
        "if self._current is not None and self._current not in self._streams:",
        "if False:",
        f"{FAULTS}::test_changes_are_heard_after_a_stream_that_ended_as_soon_as_it_began",
    ),
    Mutant(
        "an agreement to tell changes is a list",
        "sampler/mcp_docker/server_changes.py",
        "not (isinstance(agreed, list) and uri in agreed):",
        "uri not in (agreed or ()):",
        f"{FAULTS}::test_an_agreement_that_is_no_list_is_none",
    ),
    Mutant(
        "a server asks a bounded number of questions at once",
        "sampler/mcp_docker/input_rounds.py",
        "if len(questions) > MAX_QUESTIONS:",
        "if False:",
        f"{FAULTS}::test_nonsense_is_the_end_of_one_call",
    ),
    Mutant(
        "a server that serves another revision now is a failure of infrastructure",
        "sampler/mcp_docker/modern_link.py",
        "            exchange.finish(encoded(refusal(exchange.request_id, SERVER_GONE, why)), BAD_GATEWAY)\n",
        "            super()._on_final(exchange, message, body)\n",
        f"{FAULTS}::test_a_server_that_refuses_the_revision_is_a_failure_of_infrastructure",
    ),
    Mutant(
        "an answer that broke off",
        "sampler/mcp_docker/server_link.py",
        'return self._named(error) if is_cut_off(error) else ""',
        'return ""',
        f"{AWAY}::test_an_answer_that_breaks_off_is_a_failure_of_the_server_also_after_a_handshake",
    ),
    Mutant(
        "a state of a server that looks like the gateway's",
        "sampler/mcp_docker/modern_session.py",
        "            if self.episode is None:  # else",
        "            if True:  # else",
        f"{FAULTS}::test_a_servers_own_state_is_not_mistaken_for_the_gateways",
    ),
    Mutant(
        "a server that never lists its tools",
        "sampler/mcp_docker/gateway_session.py",
        "async with asyncio.timeout(within_s):",
        "async with asyncio.timeout(None):",
        f"{FAULTS}::test_a_server_that_never_lists_its_tools_is_not_waited_for",
    ),
    Mutant(
        "a server that reads nothing holds no request",
        "sampler/mcp_docker/channel.py",
        '            pipe.write(one_line(body) + b"\\n")\n',
        '            pipe.write(one_line(body) + b"\\n")\n            await process.stdin.drain()\n',
        f"{FAULTS}::test_a_session_whose_server_reads_nothing_ends_with_its_client",
    ),
    Mutant(
        "bytes that a server has not read",
        "sampler/mcp_docker/channel.py",
        "> _UNREAD_BYTES:",
        "> 1000 * _UNREAD_BYTES:",
        f"{FAULTS}::test_requests_that_a_server_does_not_read_are_bounded",
    ),
)
