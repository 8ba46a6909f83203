"""Clients of the handshake's revisions, and servers of 2026-07-28, whose results ask for input (`input_required`).

The client is asked as a server of its own revision would: by requests. When it has answered them all, its request is
repeated to the server, with the answers and the server's state. That is a round; a request has at most MAX_ROUNDS.
"""

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp_types import INTERNAL_ERROR, SERVER_INFO_META_KEY

from sampler.mcp_docker.links.errors import Refused, ServerGone
from sampler.mcp_docker.links.exchange import Exchange
from sampler.mcp_docker.links.messages import SERVER_GONE, Message, RequestId, encoded, notification, refusal, request

MAX_ROUNDS = 10
MAX_QUESTIONS = 100  # of one round
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 0.25  # before a round without a question
_MODERN_KEYS = ("resultType", "ttlMs", "cacheScope")
_BAD_GATEWAY = 502


class AskingLink(Protocol):
    """`ModernLink`, as far as rounds need it."""

    in_flight: dict[RequestId, Exchange]

    @property
    def owner(self) -> Any: ...
    def new_id(self) -> str: ...
    async def send_request(self, message: Message) -> None: ...


@dataclass
class _Repeated:
    """A client's request that may have to be repeated."""

    message: Message
    rounds: int = 0
    task: "asyncio.Task[None] | None" = field(default=None)


class InputRounds:
    """Of one server: the requests of such clients that are in flight with it."""

    def __init__(self, link: AskingLink) -> None:
        self._link = link
        self._requests: dict[Exchange, _Repeated] = {}
        self._pending: dict[RequestId, asyncio.Future[Message]] = {}

    def begin(self, exchange: Exchange, message: Message) -> None:
        self._requests[exchange] = _Repeated(message)

    def end(self, exchange: Exchange) -> None:
        """It was answered, or its answer is no longer awaited."""
        known = self._requests.pop(exchange, None)
        if known is not None and known.task is not None:
            known.task.cancel()

    def close(self) -> None:
        for exchange in list(self._requests):
            self.end(exchange)

    def go_on(self, exchange: Exchange, result: Message) -> None:
        """Ask its client for what `result` asks, and repeat the request."""
        known = self._requests.get(exchange)
        if known is None:
            return
        exchange.sent_id = self._link.new_id()  # an id is used once
        self._link.in_flight[exchange.sent_id] = exchange
        if known.task is not None:  # it answered twice
            known.task.cancel()
        known.rounds += 1
        known.task = asyncio.ensure_future(self._round(exchange, known, result))

    def answered(self, message: Message) -> None:
        """The client's answer, or the gateway's refusal to ask it."""
        pending = self._pending.get(message["id"])
        if pending is not None and not pending.done():
            pending.set_result(message)

    async def _round(self, exchange: Exchange, known: _Repeated, result: Message) -> None:
        try:
            if known.rounds > MAX_ROUNDS:
                raise Refused(INTERNAL_ERROR, f"the tool server asked for input more than {MAX_ROUNDS} times")
            given = await self._input(exchange, known.rounds, result)
            params = known.message.get("params", {}) | given
            await self._link.send_request(known.message | {"id": exchange.sent_id, "params": params})
        except Refused as exc:
            self._fail(exchange, refusal(exchange.request_id, exc.code, str(exc)))
        except ServerGone as exc:
            self._fail(exchange, refusal(exchange.request_id, SERVER_GONE, str(exc)), _BAD_GATEWAY)

    def _fail(self, exchange: Exchange, why: Message, status: int = 200) -> None:
        self._requests.pop(exchange, None)
        self._link.in_flight.pop(exchange.sent_id, None)
        exchange.finish(encoded(why), status)

    async def _input(self, exchange: Exchange, number: int, result: Message) -> Message:
        """The parameters that the repeated request has besides its own. Raises Refused."""
        requests, state = result.get("inputRequests"), result.get("requestState")
        questions = requests if isinstance(requests, dict) else {}
        if len(questions) > MAX_QUESTIONS:
            why = f"the tool server asked {len(questions)} questions at once; expected at most {MAX_QUESTIONS}"
            raise Refused(INTERNAL_ERROR, why)
        if not questions and state is None:
            raise Refused(INTERNAL_ERROR, "the tool server asked for input without a question and without a state")
        given: Message = {} if state is None else {"requestState": state}
        if questions:
            given["inputResponses"] = await self._answers(exchange, questions)
        else:
            await asyncio.sleep(min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (number - 1)))
        return given

    async def _answers(self, exchange: Exchange, questions: Message) -> Message:
        """By the server's keys. Raises Refused: the client does not serve one of them, or refuses it."""
        key_by_id = {self._link.new_id(): key for key in questions}
        try:
            for number, key in key_by_id.items():
                self._ask(exchange, number, questions[key])
            answers = await asyncio.gather(*(self._pending[number] for number in key_by_id))
        finally:
            for number in key_by_id:
                self._withdraw(number)
        return {key: _result(message) for key, message in zip(key_by_id.values(), answers, strict=True)}

    def _ask(self, exchange: Exchange, number: RequestId, question: Any) -> None:
        if not isinstance(question, dict) or not isinstance(method := question.get("method"), str):
            raise Refused(INTERNAL_ERROR, f"the tool server asked for the input {question!r:.100}; expected a request")
        params = question.get("params")
        filled = dict(params) if isinstance(params, dict) else {}
        if filled.get("mode") == "url":
            filled.setdefault("elicitationId", secrets.token_urlsafe(16))  # 2025-11-25 demands one
        self._pending[number] = asyncio.get_running_loop().create_future()
        in_flight = self._link.in_flight
        in_flight[exchange.sent_id] = in_flight.pop(exchange.sent_id, exchange)  # the last one's client is asked
        self._link.owner.on_request(self._link, request(number, method, filled))

    def _withdraw(self, number: RequestId) -> None:
        """A question that was not answered."""
        pending = self._pending.pop(number, None)
        if pending is not None and (
            pending.cancel() or pending.cancelled()
        ):  # a cancelled round has cancelled it already
            withdrawal = notification("notifications/cancelled", {"requestId": number})
            self._link.owner.on_notification(self._link, withdrawal, encoded(withdrawal))


def _result(message: Message) -> Message:
    """Raises Refused."""
    result, error = message.get("result"), message.get("error")
    if isinstance(result, dict):
        return result
    code = error.get("code") if isinstance(error, dict) else None
    why = error.get("message") if isinstance(error, dict) else error
    raise Refused(code if isinstance(code, int) else INTERNAL_ERROR, f"no input for the tool server: {why!s:.300}")


def in_handshake_words(message: Message) -> Message:
    """An answer of a server of 2026-07-28, for a client of the older revisions."""
    result = message.get("result")
    if not isinstance(result, dict):
        return message
    shown = {key: value for key, value in result.items() if key not in _MODERN_KEYS}
    meta = shown.get("_meta")
    if isinstance(meta, dict) and SERVER_INFO_META_KEY in meta:
        shown["_meta"] = {key: value for key, value in meta.items() if key != SERVER_INFO_META_KEY}
        if not shown["_meta"]:
            del shown["_meta"]
    return message | {"result": shown}
