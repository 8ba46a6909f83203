"""Continuous batching of the sequences in flight, without threads or clocks: the caller of `step` owns all state.

    step:  admit waiting ─▶ one packed prefill of at most MAX_PREFILL_TOKENS ─▶ one decode of all that run

Sequence states: waiting ─▶ prefilling (owns a slot) ─▶ running (slot i = row i of the decode batch) ─▶ finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sampler.engine.api.generation import Decode
from sampler.engine.local.attention import Forward, Piece, prefill_plan
from sampler.engine.local.batch import DecodeBatch
from sampler.engine.local.kv import KvSlots
from sampler.engine.local.running import RunningSequence
from sampler.engine.local.sampling import SamplingBatch, sample
from shared.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sampler.engine.local.vision import Levels, Vision

MAX_PREFILL_TOKENS = 512  # per step: bounds how long running sequences wait for a new prompt
WORTH_WAITING = 32  # shared tokens for which a new sequence waits for another's prefill, to copy instead of compute


class Batching:
    def __init__(
        self, forward: Forward, kv: KvSlots, decode: Decode, weight_version: str, vision: Vision | None = None
    ) -> None:
        self.weight_version = weight_version
        self.waiting: deque[RunningSequence] = deque()
        self.prefilling: list[RunningSequence] = []
        self.running: list[RunningSequence] = []
        self.generated_tokens = 0
        self.notices: list[Callable[[], None]] = []  # of sequences that finished or streamed a token
        self.kv = kv
        self._forward, self._decode_text, self._vision = forward, decode, vision
        self._batch: DecodeBatch | None = None  # None: to be rebuilt

    @property
    def holding(self) -> bool:
        """Whether any sequence owns KV."""
        return bool(self.running or self.prefilling)

    @property
    def can_step(self) -> bool:
        return self.holding or bool(self.waiting)

    def step(self) -> None:
        if self.waiting:
            self._admit()
        if self.prefilling:
            self._prefill()
        if self.running:
            self._decode()

    def _admit(self) -> None:
        later: deque[RunningSequence] = deque()
        while self.waiting:
            g = self.waiting.popleft()
            g.enter_version(self.weight_version)
            if len(g.output) >= g.limit:  # nothing to generate: max_new_tokens 0, or no room in the context
                g.cached_tokens = 0
                self.finish(g, {"type": "length", "length": len(g.output)})
            elif self._twin_in_prefill(g):
                later.append(g)
            elif self.kv.take(g):
                if g.cached_tokens is None:
                    g.cached_tokens = g.computed
                self.prefilling.append(g)
            else:
                later.append(g)
                break
        self.waiting.extendleft(reversed(later))

    def _twin_in_prefill(self, g: RunningSequence) -> bool:
        """Whether a sequence in prefill will soon offer `g` a much longer prefix than any slot does (a group's prompts arrive
        together)."""
        twin = max((_common(g.compared, p.compared) for p in self.prefilling), default=0)
        return twin >= WORTH_WAITING and twin >= int(self.kv.common_prefix(g.compared).max()) + WORTH_WAITING

    def _prefill(self) -> None:
        features = {} if self._vision is None else self._features(self._vision)
        pieces, chunks, ended, rows, size = [], [], [], [], 0
        scored: list[tuple[RunningSequence, list[int]]] = []  # with the rows of the logits of its prompt's tokens
        for g in self.prefilling:
            take = min(len(g.context) - g.computed, MAX_PREFILL_TOKENS - size)
            if take == 0:
                break
            pieces.append(Piece(size, size + take, g.slot, g.computed))
            chunks.append(g.context[g.computed : g.computed + take])
            places = g.scored_by(take)
            if places:
                scored.append((g, [size + place - g.computed for place in places]))
            size += take
            g.computed += take
            if g.computed == len(g.context):
                ended.append(g)
                rows.append(size - 1)
        if not pieces:  # the images of all of them could not be read
            return
        tokens = torch.from_numpy(np.concatenate(chunks)).long()
        of_prompts = [row for _, places in scored for row in places]
        plan = prefill_plan(self.kv, pieces, tokens, of_prompts + rows)
        if self._vision is not None:
            at_once = zip(self.prefilling, pieces, strict=False)
            self._vision.show(plan, [(piece, g.shown, features[g]) for g, piece in at_once if g.shown is not None])
        logits = self._forward.logits(plan)
        _score_prompts(scored, logits)
        for g in self.prefilling[: len(pieces)]:
            self.kv.extend(g)
        if not ended:
            return
        self.prefilling = self.prefilling[len(ended) :]
        ids, log_probs = sample(logits[len(of_prompts) :], SamplingBatch.of(ended))
        for g in ended:
            self.kv.swap(g.slot, len(self.running))  # by its length before the first token is sampled
            g.decoding = True
            self.running.append(g)
        self._batch = None
        self._accept(ended, ids.tolist(), log_probs.tolist())

    def _features(self, vision: Vision) -> dict[RunningSequence, dict[int, Levels]]:
        """Of the images among the next MAX_PREFILL_TOKENS. A sequence whose image cannot be read any more ends."""
        features: dict[RunningSequence, dict[int, Levels]] = {}
        room = MAX_PREFILL_TOKENS
        for g in list(self.prefilling):
            take = min(len(g.context) - g.computed, room)
            try:
                features[g] = {} if g.shown is None else vision.of_tokens(g.shown, g.computed, g.computed + take)
            except (DataError, ConfigError, TimeoutError, MemoryError) as error:
                self.finish(g, {"type": "abort", "message": str(error)[:500], "status_code": 503, "err_type": None})
                continue
            room -= take
        return features

    def _decode(self) -> None:
        batch = self._batch
        if batch is None or batch.exhausted:
            batch = self._batch = DecodeBatch(self.kv, list(self.running))
        ids, log_probs = sample(self._forward.logits(batch.plan), batch.sampling)
        batch.advance(ids)
        self._accept(batch.sampling.generations, ids.tolist(), log_probs.tolist())

    def _accept(self, generations: Sequence[RunningSequence], ids: list[int], log_probs: list[float]) -> None:
        """The hot loop: a few hundred nanoseconds per token unless a sequence ends."""
        self.generated_tokens += len(ids)
        ended: list[tuple[RunningSequence, dict[str, Any]]] = []
        for g, token, log_prob in zip(generations, ids, log_probs, strict=True):
            g.output.append(token)
            g.logprobs.append(log_prob)
            if token in g.stop_ids or len(g.output) >= g.limit or g.params.stop:
                reason = self._reason_to_stop(g, token)
                if reason is not None:
                    ended.append((g, reason))
                    continue
            if g.stream and g.notify is not None and g.params.streamed_at(len(g.output)):
                self.notices.append(g.notify)
        for g, reason in ended:  # after all appends: leaving moves other rows, by their lengths
            self.finish(g, reason)

    def _reason_to_stop(self, g: RunningSequence, token: int) -> dict[str, Any] | None:
        """In SGLang's order: stop string, stop token, length."""
        if g.params.stop:
            # a token has at least one byte, so the newest match spans at most as many tokens as the string has bytes
            window = max(len(s.encode()) for s in g.params.stop) + 4
            tail = self._decode_text(g.output[-window:], g.params.skip_special_tokens)
            for text in g.params.stop:
                if text in tail:
                    return {"type": "stop", "matched": text}
        if token in g.stop_ids:
            return {"type": "stop", "matched": token}
        if len(g.output) >= g.limit:
            return {"type": "length", "length": len(g.output)}
        return None

    def finish(self, g: RunningSequence, reason: dict[str, Any]) -> None:
        if g.slot >= 0:
            self._leave(g)
        g.weight_version = self.weight_version
        g.finished_at = time.perf_counter()
        g.finish = reason
        if g.notify is not None:
            self.notices.append(g.notify)

    def _leave(self, g: RunningSequence) -> None:
        """Remove `g` from its slot; the decode rows close the gap."""
        row = g.slot
        if g.experts_start is not None:
            g.experts.append(self.kv.experts_of(row, g.with_experts, g.kv_length))
            g.with_experts = max(g.with_experts, g.kv_length)
        self.kv.release(g)
        if g.decoding:
            last = len(self.running) - 1
            self.kv.swap(row, last)
            self.running[row] = self.running[last]
            self.running.pop()
            self._batch = None
        else:
            self.prefilling.remove(g)

    def retract(self) -> None:
        """Return all running sequences to the head of the queue, to prefill their prompt and partial output again."""
        retracted = [*self.running, *self.prefilling]
        for g in reversed(retracted):
            self._leave(g)
            g.begin()
            g.computed, g.decoding, g.kv_stale = 0, False, False
            g.retractions += 1
            if len(g.prompt_logprobs) < len(g.prompt) - 1 - (g.logprob_start or 0):
                g.prompt_logprobs = []  # all of one version
        self.waiting.extendleft(reversed(retracted))

    def forget(self) -> None:
        """The weights are others now: prefixes and features of images are not reused."""
        self.kv.flush()
        if self._vision is not None:
            self._vision.forget()

    def enter_version(self, version: str) -> None:
        """Set the weights' version from now on; sequences that hold KV continue under it."""
        self.weight_version = version
        for g in (*self.running, *self.prefilling):
            g.enter_version(version)


def _score_prompts(scored: Sequence[tuple[RunningSequence, list[int]]], logits: torch.Tensor) -> None:
    """Log-probs of prompt tokens, at temperature 1 as in SGLang, from the first rows of `logits`."""
    at = 0
    for g, places in scored:
        done = (g.logprob_start or 0) + len(g.prompt_logprobs) + 1
        targets = torch.tensor(g.prompt[done : done + len(places)])
        logprobs = torch.log_softmax(logits[at : at + len(places)], -1).gather(1, targets[:, None])[:, 0]
        g.prompt_logprobs += logprobs.tolist()
        at += len(places)


def _common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(differs.argmax()) if differs.any() else size
