"""`ActorSampler`: episodes in which several actors speak, each in a thread of its own. Guide: docs/bring/actors.md.

    class Interview(ActorSampler):
        async def run(self) -> Termination:
            for seat in ("Guest", "Host", "Guest"):
                turn = await self.speak(seat)
                ...

`speak` tells the seat what the others said since its last turn, asks its actor (the newest weights, fixed weights, or an API
model), and records the reply. Promise: only turns of an actor without `at` become training data; an API model that does
not answer, and a pinned version that no engine serves, are never the episode's fault.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sampler.actors.seating import Seat, order_of, seats_of
from sampler.actors.versions_away import UnavailableVersions
from sampler.core.episode.opening import NONE, opening_messages
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.core.errors import EngineUnavailable, NoEngineServes, VersionUnavailable
from sampler.core.parsers import ParsedReply
from sampler.core.parsers.reasoning import behind_reasoning
from sampler.core.rendering.reply_message import Message
from sampler.core.rendering.turn_format import joined
from shared.documents import Claim, DispatchedSamplingTask, SampledResponse
from shared.documents.actors import Seated, model_of, weights_of
from shared.documents.states import DispatchStatus
from shared.errors import ConfigError

GO_ON = "Go on."  # to a seat that speaks again before anyone else did
BETWEEN = "\n\n"  # one user message holds what several said: many chat templates refuse two in a row


@dataclass(frozen=True, slots=True)
class SeatTurn:
    """One turn as the others hear it: without reasoning and calls. `thread`: the seat's conversation."""

    seat: str
    thread: str
    text: str
    turn: Turn


class ActorSampler(AsyncSampler):
    """`said`: all turns so far, in the order of their replies."""

    def __init__(self, resources: Resources, claim: Claim) -> None:
        super().__init__(resources, claim)
        self.utterances: list[SeatTurn] = []
        self._read_count: dict[str, int] = {}  # by thread: how many of `utterances` it was shown
        self._talks: dict[str, list[Message]] = {}  # by thread of an API model: its whole conversation

    @cached_property
    def seats(self) -> Mapping[str, Seat]:
        """By name. Raises ConfigError for a lineup with an unknown actor."""
        seats = seats_of(self.config.seats, self.task, self.claim.traj_id)
        self.episode.actors = {name: Seated(actor=seat.actor, policy=seat.label) for name, seat in seats.items()}
        return seats

    def order(self) -> list[str]:
        """The seats that speak, by the task's `rounds` or the setting's. Raises ConfigError, also for an actor among them whose
        policy or model is not configured."""
        order = order_of(self.config.seats, self.claim, list(self.seats))
        self.require_actors(order)
        return order

    def require_actors(self, seats: Iterable[str]) -> None:
        """Raises ConfigError for an actor among them whose policy or model is not configured."""
        for label in {self.seats[seat].label for seat in seats}:
            model = model_of(label)
            if model is not None:
                self.resources.agents.player(model)
            else:
                self.resources.policy_client(label)

    def opening_of(self, seat: str) -> list[Message]:
        """What a seat reads first: its system prompt, and the task's query. Who is scored also reads the answer's form."""
        takes, payload = self.seats[seat].takes, self.task.payload
        return opening_messages(
            payload.model_copy(update={"system": payload.system if takes.system is None else takes.system}),
            scorers=[one.name for one in self.scorers],
            system_prompt=None if takes.system is not None else self.config.prompt.system_prompt,
            answer_instruction=self.config.prompt.answer_instruction if takes.label == self.task.policy else NONE,
        )

    def as_received(self, message: SeatTurn) -> str:
        """What the others hear of a turn."""
        return f"{message.seat} says: {message.text}" if self.config.seats.name_speakers else message.text

    async def speak(
        self, seat: str, *, thread: str | None = None, until: int | None = None, note: str | None = None
    ) -> Turn | None:
        """The seat's next turn, after what others said since its last one, and `note` (of the environment).

        `thread`: a conversation of its own, `SEAT#…`; None: the seat's main one. `until`: it hears only the first ones of `said`.
        Returns None where there is no room for another token. Raises ConfigError, EngineError, AgentFailed, VersionUnavailable.
        """
        if seat not in self.seats:
            raise ConfigError(f"seat {seat!r} is not in this slot; expected one of {', '.join(self.seats)}")
        name = seat if thread is None else thread
        count = len(self.utterances) if until is None else until
        return await self._spoken(seat, name, self._unread(seat, name, count, note), count)

    async def answer(self, seat: str, messages: Sequence[Message]) -> Turn | None:
        """The seat's next turn, after `messages` alone: what a world tells it. It hears no one else.

        Returns None, and raises, as `speak`.
        """
        system = self._system_of(seat) if seat not in self._read_count else []
        return await self._spoken(seat, seat, [*system, *(dict(message) for message in messages)], len(self.utterances))

    async def require_engines(self) -> None:
        """Raises VersionUnavailable, before the episode begins, if no engine serves the version of a pinned actor."""
        try:
            for seat in dict.fromkeys(self.order()):
                policy, version = weights_of(self.seats[seat].label)
                if version is not None:
                    await self._require_engine(self.seats[seat], policy, version)
        except (ConfigError, EngineUnavailable):
            return  # the episode itself says so, in its record

    # ------------------------------------------------------------------ inside

    def _system_of(self, seat: str) -> list[Message]:
        """The actor's system prompt, else the task's, else the setting's, as in other worlds."""
        prompts = (self.seats[seat].takes.system, self.task.payload.system, self.config.prompt.system_prompt)
        return [{"role": "system", "content": prompt} for prompt in prompts if prompt is not None][:1]

    async def _spoken(self, seat: str, name: str, messages: list[Message], count: int) -> Turn | None:
        turn = await self._reply_of(self.seats[seat].label, name, messages)
        if turn is not None:
            self._read_count[name] = count
            text = behind_reasoning(turn.parsed.content).strip()
            self.utterances.append(SeatTurn(seat, name, text, turn))
            self.episode.utterances.append({"seat": seat, "actor": self.seats[seat].actor, "content": text})
        return turn

    async def _require_engine(self, seat: Seat, policy: str, version: int) -> None:
        if await self.resources.every_version[policy].is_up(version):
            self.resources.opened.of(UnavailableVersions).note(policy, version)
            return
        why = (
            f"actor {seat.actor} is pinned to version {version} of policy {policy}, which no engine serves; start one: "
            f"python -m sampler.engine.keeper --policy {policy} --serve_version {version} …"
        )
        self.resources.opened.of(UnavailableVersions).missed(policy, version, why)
        raise VersionUnavailable(why)

    def _unread(self, seat: str, thread: str, count: int, note: str | None) -> list[Message]:
        """The messages that are new to the thread."""
        parts = [
            self.as_received(s) for s in self.utterances[self._read_count.get(thread, 0) : count] if s.thread != thread
        ]
        parts += [] if note is None else [note]
        if thread not in self._read_count:
            *system, query = self.opening_of(seat)
            heard = BETWEEN.join(parts)
            return [*system, {**query, "content": joined(query["content"], heard) if heard else query["content"]}]
        return [{"role": "user", "content": BETWEEN.join(parts) or GO_ON}]

    async def _reply_of(self, label: str, thread: str, messages: list[Message]) -> Turn | None:
        model = model_of(label)
        if model is not None:
            return await self._ask_model(model, label, thread, messages)
        version = weights_of(label)[1]
        try:
            turn = await self.create_chat_completions(messages, policy=label, thread=thread)
        except NoEngineServes as exc:
            if version is None:
                raise
            raise VersionUnavailable(str(exc)) from exc
        if version is not None and (others := self.episode.other_versions.get(label, set()) - {version}):
            raise VersionUnavailable(  # an engine that follows may load new weights in the middle of a reply
                f"a turn of {label} was sampled by version {min(others)} too; expected {version} alone: its engine loaded "
                "others meanwhile"
            )
        return turn

    async def _ask_model(self, model: str, label: str, thread: str, messages: list[Message]) -> Turn:
        """One turn of an API model. Its thread is changed only by a reply."""
        player, key = self.resources.agents.player(model), (label, thread)
        talk = [*self._talks.get(thread, ()), *messages]
        with self._in_flight.asking(key):
            async with AsyncExitStack() as answering:
                async with self._journal.numbering:
                    dispatch = self._request_of(label, thread, messages)
                    await answering.enter_async_context(self._journal.answering(dispatch))
                    await self._journal.open(dispatch, key)
                answer = await player.reply(talk)
                message = {"role": "assistant", "content": answer.value}
                response = SampledResponse(
                    text=answer.value,
                    message={"role": "assistant"},
                    output_ids=b"",
                    output_logprobs=b"",
                    finish_reason="stop",
                )
                values: dict[str, Any] = {
                    "status": DispatchStatus.COMPLETED,
                    "service": answer.use.service,
                    "played_by": answer.use,
                    "response": response,
                }
                self._journal.amend(dispatch.id, **values)
                self.episode.replied(dispatch.model_copy(update=values), self.task.policy)
                await self._journal.answered(dispatch.id)
        self._talks[thread] = [*talk, message]
        return Turn(dispatch.id, answer.value, message, ParsedReply(answer.value), "stop", thread)

    def _request_of(self, label: str, thread: str, messages: Sequence[Message]) -> DispatchedSamplingTask:
        """The request of an API model, with the next number of the episode."""
        turn = len(self.episode.dispatches)
        dispatch = DispatchedSamplingTask(
            id=f"{self.claim.record_id}:{turn}",
            record=self.claim.record_id,
            policy=label,
            thread=thread,
            turn=turn,
            while_open=self._in_flight.number((label, thread), turn),
            parent=None,
            shared_length=0,
            prompt_ids=b"",
            messages=list(messages),
            tools_hash="",
            sampling_params={},
            status=DispatchStatus.RUNNING,
        )
        self.episode.dispatches.append(dispatch.id)
        return dispatch
