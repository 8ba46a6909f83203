"""Protections of MCP-Docker's clients, and from clients that are away."""

from tests.mutant_rows.mutant import Mutant

CLIENTS = "tests/sampler/mcp_docker/test_gateway_away.py"
GONE = "tests/sampler/mcp_docker/test_gateway_gone.py"
BYTES = "tests/shared/mcp/test_http_connections.py"
POSTED = "tests/sampler/test_posted_calls.py"

MUTANTS = (
    Mutant(
        "a client of 2026-07-28 that closes a stream lives",
        "sampler/mcp_docker/sessions/modern_session.py",
        "    def broke_off(self) -> None:\n",
        "    def never_called(self) -> None:\n",
        f"{CLIENTS}::test_a_client_that_closes_a_call_and_a_stream_keeps_its_tools_until_its_lease_ends",
    ),
    Mutant(
        "a client whose tools were ended is told",
        "sampler/mcp_docker/sessions/sessions.py",
        '            if reason == "silence":\n',
        "            if False:\n",
        f"{CLIENTS}::test_a_client_that_died_is_noticed_by_its_lease_and_one_that_was_too_slow_is_told",
    ),
    Mutant(
        "clients that share a set are not told of its end",
        "sampler/mcp_docker/requests/older_api.py",
        "            if episode:\n",
        "            if True:\n",
        f"{CLIENTS}::test_an_episode_of_the_older_api_is_told_once_too_and_those_without_an_id_are_not",
    ),
    Mutant(
        "a call is known before the gateway waits for a sign of life",
        "sampler/mcp_docker/requests/endpoint.py",
        '            if "method" in message and "id" in message:\n                await self._request',
        '            await session.note_sign(request)\n            if "method" in message and "id" in message:\n'
        "                await self._request",
        f"{CLIENTS}::test_a_cancellation_finds_the_call_before_it",
    ),
    Mutant(
        "a call that was cancelled before it was forwarded",
        "sampler/mcp_docker/sessions/gateway_session.py",
        "                if not exchange.has_ended:  # the client may have cancelled it meanwhile\n",
        "                if True:\n",
        f"{CLIENTS}::test_a_cancellation_finds_the_call_before_it",
    ),
    Mutant(
        "the cause of a broken session is known before its server was told of the end",
        "sampler/core/tools/connection.py",
        "            transport = await open_transport("
        "self.server, self._limits, stack, self.line, self._ended, self._new_client)\n"
        "            async with session_over(\n                checked(transport, ",
        "            async with contextlib.AsyncExitStack() as stack, session_over(\n"
        "                checked(await open_transport("
        "self.server, self._limits, stack, self.line, self._ended, self._new_client), ",
        f"{CLIENTS}::test_a_server_that_does_not_answer_the_end_hides_no_cause_and_is_told_once",
    ),
    Mutant(
        "a server is told of the end once, and within a bound",
        "shared/mcp/transports.py",
        ", terminate_on_close=False)",
        ")",
        f"{CLIENTS}::test_a_server_that_does_not_answer_the_end_hides_no_cause_and_is_told_once",
    ),
    Mutant(
        "the end of a session by URL is known before its server was told",
        "sampler/mcp_docker/links/channel.py",
        "            async with contextlib.AsyncExitStack() as stack:\n"
        "                await self._converse(stack, opened, on_message, on_end)\n",
        "            told: list[str] = []\n            async with contextlib.AsyncExitStack() as stack:\n"
        "                await self._converse(stack, opened, on_message, told.append)\n            on_end(told[0])\n",
        f"{CLIENTS}::test_the_end_of_a_session_by_url_is_known_before_its_server_has_heard_of_it",
    ),
    Mutant(
        "a resource that no server can have",
        "sampler/mcp_docker/sessions/routing.py",
        "                if self._may_have(link, uri):\n",
        "                if True:\n",
        f"{GONE}::test_a_resource_that_no_server_can_have_is_unknown_also_while_one_is_gone",
    ),
    Mutant(
        "a resource of a server that is gone, which its lists do not name",
        "sampler/mcp_docker/sessions/routing.py",
        "    return uri.startswith(prefix) or _host(uri) == _host(prefix)\n",
        "    return uri.startswith(prefix)\n",
        f"{GONE}::test_a_resource_that_no_server_can_have_is_unknown_also_while_one_is_gone",
    ),
    Mutant(
        "every server that is gone is named",
        "sampler/mcp_docker/sessions/offers.py",
        '"; ".join(str(entries) for entries in outcomes)',
        "str(outcomes[0])",
        f"{GONE}::test_a_server_that_is_gone_before_its_first_list_is_a_failure_of_infrastructure",
    ),
    Mutant(
        "a server that ends while the gateway asks it is named",
        "sampler/mcp_docker/links/server_link.py",
        "pending.set_exception(ServerGone(self._named(why)))",
        "pending.set_exception(ServerGone(why))",
        f"{GONE}::test_a_server_that_ends_while_the_gateway_asks_it_is_named",
    ),
    Mutant(
        "a connection to a tool server with bytes of no exchange",
        "shared/mcp/http_connections.py",
        "        if self._reader.unread or self._reader.at_eof() or self._writer.is_closing():\n",
        "        if self._reader.at_eof() or self._writer.is_closing():\n",
        f"{BYTES}::test_a_connection_with_bytes_that_belong_to_no_exchange_is_not_used_again",
    ),
    Mutant(
        "a connection to a tool server whose body was not read",
        "shared/mcp/http_connections.py",
        "        self._release(reusable=is_whole and self._head.keeps_alive)\n",
        "        self._release(reusable=self._head.keeps_alive)\n",
        f"{BYTES}::test_a_connection_whose_body_is_on_its_way_is_not_used_again",
    ),
    Mutant(
        "bound of a tool server's HTTP head: interim answers",
        "shared/mcp/http_connections.py",
        '            if num_bytes > MAX_HEAD_BYTES:\n                raise httpx2.RemoteProtocolError(f"no end of the head',
        '            if False:\n                raise httpx2.RemoteProtocolError(f"no end of the head',
        f"{BYTES}::test_what_is_no_whole_answer_is_an_error_of_its_kind",
    ),
    Mutant(
        "a call that is out of time is cancelled at its server",
        "sampler/core/tools/posted_calls.py",
        "            await self._cancel(number)\n            raise\n",
        "            raise\n",
        f"{POSTED}::test_a_call_that_is_out_of_time_is_cancelled_at_its_server",
    ),
    Mutant(
        "a posted message has the cookies that the server set",
        "shared/mcp/busy.py",
        '            if "set-cookie" in response.headers:\n                self.cookies.extract_cookies(response)\n',
        "",
        f"{POSTED}::test_a_posted_message_has_the_fields_that_the_client_would_send",
    ),
    Mutant(
        "a posted message has the fields of its own session",
        "shared/mcp/busy.py",
        "self._posted is None or self._posted[0] != made_of:\n",
        "self._posted is None:\n",
        f"{POSTED}::test_a_posted_message_has_the_fields_that_the_client_would_send",
    ),
    Mutant(
        "a posted message is authenticated",
        "shared/mcp/busy.py",
        "        if options != _AS_IT_IS or self._authenticates or",
        "        if options != _AS_IT_IS or",
        f"{POSTED}::test_every_posted_message_is_authenticated",
    ),
)
