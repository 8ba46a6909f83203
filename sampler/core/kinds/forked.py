"""Puts a fork's episode where its origin was before one of its turns: the same messages, the same ids, and tools as told.

stored turns ─▶ their ids and messages ─▶ [ their tool calls again, compared ] ─▶ the next request: the stored prompt
"""

from sampler.core.episode.sampler import AsyncSampler
from sampler.core.kinds.conversation import Conversation
from sampler.core.tools import ToolSession
from shared.documents import ToolCallResult
from shared.documents.fork import ForkOrigin
from shared.documents.tool_schemas import ToolSchemas, hash_of
from shared.episodes.origin import Origin, read_origin
from shared.errors import ConfigError
from shared.names import shortened

SHOWN_CHARS = 200  # of a result


async def forked_conversation(sampler: AsyncSampler, fork: ForkOrigin, tools: ToolSession) -> tuple[Conversation, int]:
    """The conversation whose next request is the turn's, and the number of turns before it. Raises ConfigError."""
    origin = await read_origin(sampler.resources.store, fork.dispatch)
    _require_same_tools(origin, tools)
    if fork.earlier_calls == "replayed":
        await _replay(origin, tools)
    schemas = tools.list_tools()
    turns = sampler._threads.fork(origin, schemas)
    for dispatch in origin.earlier:
        sampler.episode.tool_calls[dispatch.id] = tuple(dispatch.tool_calls)
    prompts = [*(one.messages for one in origin.path), origin.messages]
    talk = Conversation(sampler, prompts[0], schemas, sampler.resources.agents.browse)
    talk.go_on_after(turns, prompts[1:])
    return talk, len(turns)


def _require_same_tools(origin: Origin, tools: ToolSession) -> None:
    offered = tools.list_tools()
    if hash_of(offered) != origin.dispatch.tools_hash:
        names = ", ".join(ToolSchemas.of(offered).names()) or "none"
        raise ConfigError(
            f"dispatch {origin.dispatch.id} was asked with other tools (list {origin.dispatch.tools_hash or 'none'}) than the "
            f"servers offer now: {names}. Start the sampler with the tool servers of the origin"
        )


async def _replay(origin: Origin, tools: ToolSession) -> None:
    """Make the earlier calls again, in order. Raises ConfigError for the first result that differs."""
    for dispatch in origin.earlier:
        for index, call in enumerate(dispatch.tool_calls):
            result = await tools.call(call.name, call.arguments)
            if (result.text, result.blocks, result.is_error) != (call.result, call.blocks, call.is_error):
                raise ConfigError(_differing(f"{dispatch.id}, call {index}", call, result.text))


def _differing(where: str, call: ToolCallResult, actual: str) -> str:
    return (
        f"{where}: {call.name} answered {shortened(call.result, SHOWN_CHARS)} in the origin and "
        f"{shortened(actual, SHOWN_CHARS)} now, so the fork would go on in another world"
    )
