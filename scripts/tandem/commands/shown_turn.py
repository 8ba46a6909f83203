"""One turn as `tandem show` prints it: messages, reply, calls and figures; on request its tools, its prompt and its tokens."""

from rich.console import Console
from rich.markup import escape

from shared.documents import DispatchedSamplingTask
from shared.documents.packed import unpack_floats, unpack_ints
from shared.documents.states import ParentKind
from shared.documents.tool_schemas import ToolSchemas
from shared.episodes.images import EpisodeImages
from shared.episodes.state import TurnState
from tandem.commands.connect import table
from tandem.commands.seats import player_text
from tandem.commands.shown_fields import field, heading, number
from tandem.commands.shown_prompt import Prompts
from tandem.what_if.sampled import Spell


def print_tools(out: Console, turn: TurnState, schemas: ToolSchemas | None, prompts: Prompts, *, whole: bool) -> None:
    """Those that are in the turn's prompt; a chat template may leave tools out."""
    tools_hash = turn.dispatch.tools_hash
    if schemas is None:
        field(out, "tools", f"{tools_hash}: not stored")
        return
    read = prompts.tools(turn, schemas)
    more = f", and {schemas.left_out} that are not stored" if schemas.left_out else ""
    names = [name for name in schemas.names() if name not in read.unread]
    unchecked = "" if read.is_checked else "; as given to the chat template: its tokenizer is not on this machine"
    field(out, "tools", f"{', '.join(names) or 'none'}{more} ({tools_hash}){unchecked}")
    if read.unread:
        names_of = ", ".join(read.unread)
        field(out, "not read", f"{names_of}: the chat template left them out of the prompt", style="red")
    for line in read.shown if whole else ():
        field(out, "tool", line)


def print_prompt(out: Console, turn: TurnState, prompts: Prompts, images: EpisodeImages) -> None:
    """What the turn's prompt adds to its parent's prompt and reply."""
    before = f"[{turn.shared} tokens of turn {turn.parent}]" if turn.shared else ""
    text = prompts.added(turn, images) or "(the model's tokenizer is not on this machine)"
    field(out, "prompt", before + text, style="yellow")


def print_turn(out: Console, turn: TurnState, owner: str, images: EpisodeImages) -> None:
    d = turn.dispatch
    whose = "" if turn.policy == owner else f" of policy {turn.policy}"
    title = f"turn {d.turn}{whose}: {d.status.value}"
    if turn.parent is not None and turn.kind is not ParentKind.ROOT:
        how = "after" if turn.kind is ParentKind.BRIDGE else "forks from"
        title += f", {how} {turn.parent} (shares {d.shared_length} tokens)"
    heading(out, title)
    for message in d.messages:
        field(out, str(message.get("role", "message")), images.text(message.get("content")), style="cyan")
    if d.response is not None:
        field(out, "reply", d.response.text, style="green")
    for call in d.tool_calls:
        named = f"{call.name}({call.arguments})" + (f"  [{call.id}]" if call.id else "")
        field(out, "call", named, style="magenta")
        verdict = "error" if call.is_error else "result"
        result = images.text(call.blocks or call.result)
        field(out, verdict, f"{result}  [{call.duration_s:.2f} s]", style="red" if call.is_error else "magenta")
    versions = ", ".join(f"v{version} × {n}" for version, n in d.weight_versions)
    finish = f", {d.response.finish_reason}" if d.response is not None else ""
    prompt = d.usage.get("prompt", d.shared_length + len(unpack_ints(d.prompt_ids)))
    sampled = len(unpack_ints(d.response.output_ids)) if d.response is not None else 0
    if d.played_by is not None:
        field(out, "model", player_text(d.played_by))
        field(out, "error", d.error, style="red")
        return
    field(out, "tokens", f"{prompt} prompt ({d.usage.get('cached', 0)} cached), {sampled} sampled [{versions}]{finish}")
    field(out, "service", d.service)
    if d.client is not None:
        again = ", sent again" if d.client.again else ""
        ignored = f"; ignored: {', '.join(d.client.overridden)}" if d.client.overridden else ""
        field(out, "asked", f"through {d.client.requested_by or 'its sampler'} ({d.client.cause}{again}){ignored}")
    if d.advantage is not None:
        earned = "" if d.score is None else f" (earned {number(d.score)})"
        field(out, "advantage", f"{number(d.advantage)}{earned}")
    field(out, "error", d.error, style="red")


def print_tokens(out: Console, d: DispatchedSamplingTask, spell: Spell) -> None:
    if d.response is None:
        return
    rows = table("#", "token #", "text", "log-prob #", "version #")
    versions = [version for version, n in d.weight_versions for _ in range(n)]
    ids, logprobs = unpack_ints(d.response.output_ids), unpack_floats(d.response.output_logprobs)
    for k, (token, logprob) in enumerate(zip(ids.tolist(), logprobs.tolist(), strict=False)):
        version = str(versions[k]) if k < len(versions) else "?"
        rows.add_row(str(k), str(token), escape(repr(spell([token]))[1:-1]), f"{logprob:.4f}", version)
    out.print(rows)
