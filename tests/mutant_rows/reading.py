"""Protections of what reads a run: exports, conditions, the terminal."""

from tests.mutant_rows.mutant import Mutant

EXPORT = "tests/tandem/traces/test_export.py"
OTLP = "tests/tandem/traces/test_otlp.py"
TERMINAL = "tests/tandem/commands/test_terminal.py"
CONDITION = "tests/shared/test_condition.py"
RUNS = "tests/tandem/commands/test_runs.py"

MUTANTS = (
    Mutant(
        "an export follows no redirect",
        "scripts/tandem/traces/otlp.py",
        "opener_for(self._url, _NoRedirect())",
        "opener_for(self._url)",
        f"{EXPORT}::test_a_receiver_that_is_busy_is_asked_again_and_one_that_refuses_is_not",
    ),
    Mutant(
        "a request of spans is bounded in bytes",
        "scripts/tandem/traces/otlp.py",
        "or size + length > MAX_REQUEST_BYTES",
        "",
        f"{OTLP}::test_requests_are_bounded_in_spans_and_bytes",
    ),
    Mutant(
        "a text of a span is bounded",
        "scripts/tandem/traces/messages.py",
        'return clipped(text if isinstance(text, str) else as_json(text), max_chars).replace("\\x00", "\\ufffd")',
        'return (text if isinstance(text, str) else as_json(text)).replace("\\x00", "\\ufffd")',
        f"{OTLP}::test_megabytes_nul_and_values_that_are_no_numbers_are_sent_in_bounds",
    ),
    Mutant(
        "the error that ended a process is told without secrets",
        "shared/processes/failure.py",
        'redacted("; ".join(lines[:MOST_ERRORS]))',
        '"; ".join(lines[:MOST_ERRORS])',
        f"{CONDITION}::test_the_error_that_ends_a_process_is_told_without_secrets_and_once",
    ),
    Mutant(
        "a text from outside does not steer the terminal",
        "shared/outside_console.py",
        "text = segment.text if segment.control else visible(segment.text)",
        "text = segment.text",
        f"{TERMINAL}::test_a_segment_of_any_renderable_is_made_visible",
    ),
    Mutant(
        "a run of which a process is alive is not deleted",
        "scripts/tandem/commands/runs.py",
        "if row.alive:",
        "if False:",
        f"{RUNS}::test_what_lives_or_is_not_tandems_alone_is_kept_with_the_reason",
    ),
    Mutant(
        "a database with other collections is not deleted",
        "scripts/tandem/commands/runs.py",
        "others = await foreign_collections(Store(client, row.name))",
        "others = []",
        f"{RUNS}::test_what_lives_or_is_not_tandems_alone_is_kept_with_the_reason",
    ),
    Mutant(
        "a slow client of the metrics page is hung up on",
        "shared/http/pages.py",
        "async with asyncio.timeout(time_limit_s):",
        "async with asyncio.timeout(None):",
        "tests/shared/test_metrics_page.py::test_a_client_that_sends_a_byte_at_a_time_is_hung_up_on",
    ),
    Mutant(
        "an export follows the steps that a resume takes again",
        "scripts/tandem/commands/trace_export.py",
        "*(began_from + 1 for began_from in starts[seen:])",
        "",
        "tests/tandem/traces/test_follow.py::test_steps_are_followed_by_policy_and_again_after_a_resume",
    ),
    Mutant(
        "tail knows every event of before its first look",
        "scripts/tandem/commands/tail.py",
        "while len(page) == MOST_AT_ONCE:",
        "while False:",
        f"{RUNS}::test_tail_loses_none_of_more_episodes_than_a_query_returns_that_end_between_two_looks",
    ),
    Mutant(
        "tail remembers what it may find again",
        "scripts/tandem/commands/tail.py",
        "while seen and next(iter(seen))[1] < self._newest[kind] - LOOK_BACK:",
        "while len(seen) > 20_000:",
        f"{RUNS}::test_tail_prints_each_of_very_many_episodes_once_and_forgets_those_of_long_ago",
    ),
    Mutant(
        "tail goes on behind a full page",
        "scripts/tandem/commands/tail.py",
        "self._newest[kind] = max(self._newest[kind], events[-1].at)",
        "pass",
        f"{RUNS}::test_tail_does_not_read_a_full_page_again_and_again",
    ),
    Mutant(
        "a run that goes on is not deleted",
        "scripts/tandem/commands/runs.py",
        "if row.condition in LIVE:",
        "if False:",
        f"{RUNS}::test_only_old_runs_that_are_over_are_deleted_and_only_when_told",
    ),
    Mutant(
        "a failed process is not alive",
        "shared/store/runs.py",
        'LEFT = rf"^({STOPPED}$|{FAILED})"',
        'LEFT = rf"^({STOPPED}$)"',
        f"{CONDITION}::test_a_failed_process_is_not_alive_though_its_heartbeat_is_fresh",
    ),
)
