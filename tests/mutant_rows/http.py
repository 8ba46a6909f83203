"""Protections of every HTTP server: time for a request's bytes, and bounds of connections."""

from tests.mutant_rows.mutant import Mutant

LIMITS = "tests/shared/test_http_limits.py"
REST = f"{LIMITS}::test_a_client_that_does_not_send_the_rest_is_hung_up_on"
BEYOND = f"{LIMITS}::test_beyond_the_bound_idle_clients_go_first_and_health_is_answered_at_any_rate"
ADDRESS = f"{LIMITS}::test_one_address_cannot_take_every_connection_and_a_proxy_on_this_machine_is_none"

MUTANTS = (
    Mutant(
        "a client that does not send the rest of a request is hung up on",
        "shared/http/protocol.py",
        "        return now > self._deadline\n",
        "        return False\n",
        REST,
    ),
    Mutant(
        "a trickled head has no more time than a silent one",
        "shared/http/protocol.py",
        "        if phase is self._phase:\n            return\n",
        "",
        REST,
    ),
    Mutant(
        "a body that its application does not read is not overdue",
        "shared/http/protocol.py",
        "self.flow.read_paused or self.cycle.waiting_for_100_continue",
        "False",
        f"{LIMITS}::test_a_body_that_comes_fast_enough_or_that_the_application_does_not_read_has_time",
    ),
    Mutant(
        "a client that does not take its response is hung up on",
        "shared/http/protocol.py",
        "return now > self._unsent_since + self._limits.send_s",
        "return False",
        f"{LIMITS}::test_a_client_that_does_not_take_its_response_is_hung_up_on",
    ),
    Mutant(
        "silent connections make room for new ones",
        "shared/http/connections.py",
        "        if len(self) >= self.most:\n            self._close_one()\n",
        "",
        BEYOND,
    ),
    Mutant(
        "health is answered where all connections are in use",
        "shared/http/connections.py",
        "if len(self) >= self.most + RESERVE:",
        "if len(self) >= self.most:",
        BEYOND,
    ),
    Mutant(
        "spare connections are for health alone",
        "shared/http/protocol.py",
        "self.app = _Spare(self.app)",
        "pass",
        BEYOND,
    ),
    Mutant(
        "one address has half of the connections",
        "shared/http/connections.py",
        "self._by_address[bounded] >= self.per_address",
        "False",
        ADDRESS,
    ),
    Mutant(
        "a proxy on this machine has no bound of an address",
        "shared/http/connections.py",
        "if address and not _is_this_machine(address)",
        "if address",
        ADDRESS,
    ),
    Mutant(
        "connections leave descriptors for what answers them",
        "shared/http/connections.py",
        "share = max(2 * RESERVE, num_files // 2)",
        "share = num_files * 9",
        f"{LIMITS}::test_connections_leave_descriptors_for_what_answers_them",
    ),
)
