"""Waits without a `Wait`, by the reason: `tests/test_waits.py` allows no other."""

FOLDERS = {
    "scripts/bench/": "benchmarks print where they are, and belong to no run",
    "scripts/deploy_check/": "prints each condition before it waits for it",
    "sampler/engine/vllm/": "an engine's own watch over its core, and its requests: the sampler that sent one says that it waits",
    "sampler/engine/api/": "an engine's requests: the sampler that sent one says that it waits for it",
    "sampler/engine/local/": "an engine's requests: the sampler that sent one says that it waits for it",
    "sampler/mcp_docker/": "a server of tools, no process of a run: its clients say that they wait for it (`queued`)",
}

REASONS: dict[str, tuple[str, ...]] = {
    "until a signal: the process serves meanwhile": (
        "sampler/engine/keeper/keeper.py:Keeper._run",
        "sampler/environments/serving.py:_serve",
        "sampler/gateway/service.py:GatewayService._work",
        "scripts/tandem/commands/metrics.py:_serve",
        "scripts/tandem/commands/server.py:_wait",
        "shared/http/pages.py:serving_thread.serve",
        "shared/http/server.py:HttpServer.main_loop",
    ),
    "a part of a wait: its caller says what it waits for, and until when": (
        "sampler/core/service/loops.py:first_of",
        "shared/store/poll_timer.py:PollTimer.pause",
    ),
    "tasks that send and receive signals in the background: each caller that waits for a signal has a time limit": (
        "shared/store/signals.py:Signals._listen",
        "shared/store/signals.py:Signals._send_due",
        "shared/store/signals.py:Signals.close",
    ),
    "the end of a process that was killed or asked to end, with a limit of seconds": (
        "sampler/engine/keeper/child.py:EngineChild.kill",
        "sampler/engine/keeper/child.py:_sweep",
        "sampler/engine/keeper/adapters.py:EngineAdapters._keep",
        "sampler/environments/adapters/shell.py:run_in_sandbox",
        "sampler/gateway/preload.py:PreloadedInterpreter._end",
        "shared/processes/guarded.py:end_marked",
        "shared/processes/guarded.py:has_ended",
        "shared/mcp/stdio.py:stdio_transport.end",
        "scripts/tandem/launch/children.py:Children.stop",
        "scripts/tandem/launch/processes.py:_wait",
        "shared/forks/processes.py:ForkedProcess._until_gone",
        "shared/processes/child.py:end_child",
        "shared/processes/guard.py:_end",
        "shared/sandbox/folders.py:_end_processes",
    ),
    "tasks of this process that were cancelled, or that have limits of their own": (
        "sampler/core/service/settling.py:Settling.settle_all",
        "sampler/gateway/app.py:_chat",
        "sampler/gateway/relay.py:Relay.close",
        "sampler/gateway/session.py:AttemptSession._answered",
        "sampler/gateway/session.py:AttemptSession._give_up",
        "sampler/gateway/session.py:AttemptSession.close",
        "sampler/gateway/shared_journal.py:finished",
        "shared/mcp/busy.py:PatientClient.end_session",
        "sampler/core/tools/connection.py:Connection._converse",
        "scripts/tandem/launch/__main__.py:Launch.until_done_or_interrupted",
        "shared/store/retry.py:_ends",
        "trainer/process/store_bridge.py:StoreBridge._close",
    ),
    "a call of an episode: its own time-out ends it, and the record says so": (
        "sampler/core/api_models/pool.py:ModelPool._ask_one",
        "sampler/core/tools/connection.py:Connection._ask",
        "sampler/core/tools/link.py:Link.call",
    ),
    "two pauses at most of half a second between examinations, of a command that is no process of a run": (
        "scripts/tandem/audit/groups.py:audit_groups",
        "scripts/tandem/audit/marks.py:audit_new_marks",
    ),
    "a few seconds at most, with an error at the end": (
        "sampler/environments/adapters/mariadb_server.py:MariadbServer._wait",
        "sampler/gateway/attempt.py:Attempt._whole",
        "shared/forks/server.py:ScriptForks.serve",
        "sampler/gateway/server.py:GatewayServer._start",
        "scripts/tandem/launch/lock.py:RunLock.__enter__",
        "scripts/tandem/traces/otlp.py:Exporter._post",
    ),
    "an environment service: its clients say that they wait for room, and its heartbeat how many sessions it has": (
        "sampler/environments/sessions.py:WorldSessions._free_worker",
        "sampler/environments/sessions.py:WorldSessions.drain",
    ),
    "the heartbeat says it by other means: `doing_of` for a sampler, `RecordStream.waiting` for a trainer": (
        "sampler/core/service/service.py:SamplerService._work",
        "trainer/data/stream.py:RecordStream._wait_for_groups",
        "trainer/data/stream.py:RecordStream.next_batch",
    ),
    "inside of a wait that its caller owns": (
        "scripts/tandem/launch/__main__.py:Launch.follow",
        "scripts/tandem/launch/rounds.py:EvalRound.play",
        "trainer/step/shared_device.py:TrainerDevice._taken",
    ),
    "no wait: a renewal, or work in a thread next to the step, for which nothing waits": (
        "sampler/core/settlement/group_scoring.py:GroupScoring._renewed.renew",
        "trainer/step/shared_device.py:TrainerDevice._renew",
        "scripts/tandem/launch/step_cost.py:_size",
        "scripts/tandem/launch/step_cost.py:_mean_tokens",
        "scripts/tandem/launch/step_cost.py:_speed",
    ),
    "the launcher's phase is shown, and the awaited processes say themselves what they wait for": (
        "scripts/tandem/launch/children.py:Children.wait_exit",
        "scripts/tandem/launch/following.py:_end_of_run",
    ),
    "the database is away, so no heartbeat can be written: the log says it, and after its patience an error": (
        "shared/store/first_start.py:_until",
        "shared/store/primary.py:until_primary",
        "shared/store/retry.py:repeated.verb",
    ),
    "a command in the foreground of a person, who sees it": (
        "scripts/tandem/what_if/resettle.py:_settle_all",
        "scripts/chromium.py:PageOfChromium.until",
        "scripts/chromium.py:_address",
        "scripts/viewer_pictures.py:_taken",
        "scripts/tandem/commands/fork.py:_ended",
        "scripts/tandem/commands/status.py:status.work",
        "scripts/tandem/commands/tail.py:tail.work",
        "scripts/tandem/commands/trace_export.py:_by_group",
    ),
}
UNOWNED = {name: reason for reason, names in REASONS.items() for name in names}
