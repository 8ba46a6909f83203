"""`tandem show`: print an episode, the attempts at a task, or the latest episodes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from shared.documents import DBRecordData, Record, Task
from shared.documents.agent_sessions import AgentSession
from shared.documents.states import SlotStatus
from shared.episodes.images import EpisodeImages
from shared.episodes.state import EpisodeState, ThreadState, TurnState
from shared.episodes.stored import StoredEpisode, read_episode
from shared.errors import ConfigError
from shared.store import Store
from shared.store.views.terms import rules_texts
from tandem.commands.connect import Connection, RunName, ago, console, print_records, table, with_store
from tandem.commands.long_texts import MOST_CHARS, prints_whole
from tandem.commands.note import note_title
from tandem.commands.seats import seat_text
from tandem.commands.shown_fields import field, heading, number
from tandem.commands.shown_images import write_images
from tandem.commands.shown_prompt import Prompts
from tandem.commands.shown_turn import print_prompt, print_tokens, print_tools, print_turn
from tandem.what_if.sampled import Spell, speller

EXAMPLES = """Examples:

`tandem show demo`  the latest episodes, to choose from

`tandem show demo arith-00017`  a task, by its id in the data set, with every attempt at it

`tandem show demo main:eval:0:arith-00017:3:1`  one episode

`tandem show demo main:eval:0:arith-00017:3:1 --tokens`  with every sampled token and its log-probability

`tandem show demo main:eval:0:arith-00017:3:1 --tools`  with the tool schemas that the model read

`tandem show demo main:eval:0:arith-00017:3:1 --whole`  with texts of megabytes to their end

`tandem show demo main:eval:0:arith-00017:3:1 --prompt`  with every prompt as the model read it

`tandem show demo main:eval:0:arith-00017:3:1 --images pictures`  also writes its images into that folder
"""


def show(
    run: RunName,
    what: Annotated[
        str | None,
        typer.Argument(metavar="[RECORD|TASK]", help="A record's id, a task's id, or a task's id in its data set."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show every sampled token with its log-probability.")
    ] = False,
    tools: Annotated[bool, typer.Option("--tools", help="Show the tool schemas that the model read.")] = False,
    prompt: Annotated[
        bool, typer.Option("--prompt", help="Show what the model read: the decoded prompts, with special tokens.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help=f"Print texts above {MOST_CHARS:,} characters too.")] = False,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images", metavar="DIR", help="Write the episode's images into this folder, named by their SHA-256."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of records to list.")] = 20,
    db_connection_string: Connection = None,
) -> None:
    """Print an episode: its task, then turn by turn the model's input, reply and tool calls, and the outcome."""

    async def work(store: Store) -> None:
        prints_whole.set(whole)
        if what is None:
            await _list_recent(store, limit)
        elif (record := await store.records.get(what)) is not None:
            spell = await speller(store, record.policy) if tokens else None
            episode = await read_episode(store, record)
            prompts = await Prompts.of(store, episode.state)
            shown = _images_of(episode)
            _print_episode(episode, prompts, spell, shown, whole_tools=tools, whole_prompts=prompt)
            if images is not None:
                await write_images(store, shown, images)
            for note in await store.notes.of(record.id):
                field(console(), "note", f"{note_title(note)}: {note.text}")
        else:
            await _show_tasks(store, what)

    with_store(db_connection_string, run, work, read_only=True)


# ---------------------------------------------------------------------- lists of records


async def _list_recent(store: Store, limit: int) -> None:
    for text in await rules_texts(store):
        console().print(text, markup=False, soft_wrap=True)
    records = await store.records.recent(limit)
    if not records:
        console().print("no episode has ended yet")
        return
    now = await store.questions.server_time()
    _print_records(f"the last {len(records)} episodes", records, lambda r: f"{ago(r.finished_at, now)} ago")
    console().print(f"`tandem show {store.run} RECORD` prints one", markup=False)


async def _show_tasks(store: Store, name: str) -> None:
    documents = await store.questions.tasks_called(name)
    if not documents:
        raise ConfigError(
            f"run {store.run}: no record and no task is called {name!r}; `tandem show {store.run}` lists the latest records"
        )
    out = console()
    for document in documents:
        task = Task.from_mongo(document)
        _print_task(out, task, EpisodeImages.of([], task.payload.query_blocks))
        slots = table("slot #", "status", "attempt #", "failures #", "score #", "record", "error")
        for s in task.slots:
            cells = (s.status.value, s.attempt, s.failures, number(s.score), s.record_id or "", s.error or "")
            slots.add_row(str(s.traj_id), *(escape(str(cell)) for cell in cells))
        print_records(out, slots)
        records = [Record.from_mongo(d) for d in await store.questions.records_of(task.id)]
        _print_records(f"{len(records)} attempts", records, lambda r: f"slot {r.traj_id}, attempt {r.attempt}")


def _print_records(title: str, records: Sequence[Record], last: Callable[[Record], str]) -> None:
    names = ("record", "status", "score #", "turns #", "tokens #", "termination", "answer", "")
    rows = table(*names, title=escape(title))
    for r in records:
        rows.add_row(
            escape(r.id),
            r.status.value,
            number(r.score),
            str(r.num_turns),
            str(r.num_tokens),
            r.termination or "",
            escape(_short(r.answer or "", 30)),
            last(r),
        )
    print_records(console(), rows)


# ---------------------------------------------------------------------- one episode


def _images_of(episode: StoredEpisode) -> EpisodeImages:
    query = () if episode.task is None else episode.task.payload.query_blocks
    return EpisodeImages.of([turn.dispatch for turn in episode.state.turns], query)


def _print_episode(
    episode: StoredEpisode,
    prompts: Prompts,
    spell: Spell | None,
    images: EpisodeImages,
    *,
    whole_tools: bool,
    whole_prompts: bool,
) -> None:
    out = console()
    record = episode.record
    if episode.task is not None:
        _print_task(out, episode.task, images)
    field(out, "record", f"{record.id}: {record.status.value}, {record.num_turns} turns, {record.num_tokens} tokens")
    played = ", ".join([record.worker, *(f"with {name}" for name in episode.settings)])
    field(out, "sampler", played if record.session is None else f"an agent elsewhere; claimed at {played}")
    previous_hash = ""
    for turn in _in_order(out, episode.state):
        if turn.dispatch.tools_hash not in ("", previous_hash):
            previous_hash = turn.dispatch.tools_hash
            print_tools(out, turn, episode.tools.get(previous_hash), prompts, whole=whole_tools)
        print_turn(out, turn, record.policy, images)
        if whole_prompts and turn.dispatch.played_by is None:
            print_prompt(out, turn, prompts, images)
        if spell is not None:
            print_tokens(out, turn.dispatch, spell)
    out.print(Rule("outcome"))
    for problem in episode.state.problems:
        field(out, "problem", problem, style="red")
    field(out, "ended", f"{record.termination or 'not yet'}" + (f"; {record.error}" if record.error else ""))
    field(out, "traceback", record.traceback, style="red")
    field(out, "agent", None if record.session is None else _session(record.session))
    _print_wait(out, episode)
    field(out, "settled", record.reason)
    field(out, "answer", record.answer)
    _print_scores(out, record)
    field(out, "details", record.reward_details or None)
    field(out, "metrics", ", ".join(f"{name} {value:g}" for name, value in record.metrics.items()) or None)
    field(out, "advantage", number(record.advantage))
    field(out, "versions", ", ".join(map(str, record.policy_versions)) or None)
    for policy, versions in record.other_policy_versions.items():
        field(out, "versions", f"{', '.join(map(str, versions))} of policy {policy}")
    for data in episode.data:
        whose = "" if data.policy == record.policy else f"policy {data.policy}: "
        field(out, "training", whose + _training(data))
    if not episode.data:
        field(out, "training", "no training data")


def _print_scores(out: Console, record: Record) -> None:
    field(out, "score", number(record.score))
    for policy, score in record.policy_scores.items():
        field(out, "score", f"{number(score)} of policy {policy}")
    for seat, seated in record.actors.items():
        field(out, "seat", seat_text(seat, seated))


def _session(session: AgentSession) -> str:
    """What the agent elsewhere said of its attempt."""
    parts = [] if session.score is None else [f"posted the score {number(session.score)}"]
    if session.limit is not None:
        parts.append(f"met {session.limit.termination} at turn {session.limit.turn}")
    end = session.end
    if end is None:
        return ", ".join([*parts, "has not finished"])
    given = [name for name in ("score", "answer", "error") if getattr(end, name) is not None]
    how = "gave the task back" if end.given_back else f"finished with {given[0] if given else 'nothing'}"
    when = "" if session.ended_at is None else f" at {session.ended_at:%Y-%m-%d %H:%M:%S} UTC"
    return ", ".join([*parts, how + when])


def _print_wait(out: Console, episode: StoredEpisode) -> None:
    """Of an episode that waits for feedback, or waited for it."""
    record = episode.record
    slot = None if episode.task is None else episode.task.slots[record.traj_id]
    if slot is not None and slot.status is SlotStatus.WAITING and slot.record_id == record.id:
        field(out, "waits", f"for feedback until {slot.free_at:%Y-%m-%d %H:%M:%S} UTC")
    if record.without_feedback is not None:
        field(out, "without", f"feedback the score is {number(record.without_feedback.score)}")


def _in_order(out: Console, state: EpisodeState) -> Iterator[TurnState]:
    """As asked; in an episode with threads one thread after the other, each below its name."""
    if all(thread.name is None for thread in state.threads):
        yield from state.turns
        return
    field(out, "threads", "; ".join(_thread(thread, state.record.policy) for thread in state.threads))
    for thread in state.threads:
        heading(out, _thread(thread, state.record.policy), "═")
        yield from thread.turns


def _thread(thread: ThreadState, owner: str) -> str:
    turns = ", ".join(str(turn.number) for turn in thread.turns)
    return f"{thread.label(owner)}: turn{'s' * (len(thread.turns) > 1)} {turns}"


def _training(data: DBRecordData) -> str:
    steps = ", ".join(map(str, data.trained_steps)) or "none yet"
    reason = f" ({data.reason})" if data.reason else ""
    counts = f"{data.num_trained_tokens} of {data.num_tokens} tokens have a loss"
    return f"{data.status.value}{reason}; steps: {steps}; {counts}"


def _print_task(out: Console, task: Task, images: EpisodeImages) -> None:
    heading(out, f"task {task.id}")
    field(out, "query", images.text(task.payload.query_blocks or task.payload.query))
    field(out, "expected", " or ".join(task.payload.accepted) or None)
    field(out, "system", task.payload.system)
    field(
        out,
        "scorer",
        f"{', '.join(task.payload.scorer_names) or 'the default one'}, answer_schema {task.payload.answer_schema}",
    )
    field(out, "tools", task.payload.tools)
    field(out, "exclude_tools", task.payload.exclude_tools or None)
    field(out, "metadata", task.payload.metadata or None)
    outcome = f" ({task.outcome})" if task.outcome else ""
    field(out, "status", f"{task.status.value}{outcome}, seq {task.seq}, {task.num_generations} episodes")
    met = task.unforeseen
    if met is not None:
        aside = "set aside: " if met.set_aside else ""
        counts = f"{met.episodes} episodes and {met.settlements} settlements met a bug"
        field(out, "bugs", f"{aside}{counts}; the last: {met.error}", style="red")


def _short(text: str, n: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= n else line[: n - 1] + "…"
