"""Random records, a tiny model, and the slow, obvious way to compute what the trainer computes fast."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from shared.tokens.record_tree import RecordTree, TreeDispatch
from shared.truncation import WHOLE, Truncation
from trainer.trees.staleness import Staleness

VOCABULARY = 37
FLEX_HEAD_DIM = 16  # the least that FlexAttention computes on a GPU
NUM_VERSIONS = 5
STALENESS = Staleness({version: NUM_VERSIONS - 1 - version for version in range(NUM_VERSIONS)})


@dataclass
class RecordBuilder:
    """A record, told turn by turn: tokens are appended after any older node, and come out in depth-first order."""

    record_id: str

    def __post_init__(self) -> None:
        self.tokens: list[tuple[int, int, int, float, int]] = []  # token id, parent, dispatch, log-prob, version
        self.dispatches: list[TreeDispatch] = []

    def context(self, ids: Sequence[int], after: int = -1) -> int:
        """Append tokens that were not sampled; returns the last node."""
        for token in ids:
            self.tokens.append((token, after, -1, 0.0, -1))
            after = len(self.tokens) - 1
        return after

    def reply(
        self,
        ids: Sequence[int],
        after: int,
        *,
        logprobs: Sequence[float] | None = None,
        versions: Sequence[int] | None = None,
        advantage: float = 1.0,
        temperature: float = 1.0,
        trained: bool = True,
        truncation: Truncation = WHOLE,
    ) -> int:
        """Append one dispatch's sampled tokens; returns the last node."""
        number = len(self.dispatches)
        dispatch_id = f"{self.record_id}/{number}"
        self.dispatches.append(TreeDispatch(dispatch_id, number, advantage, temperature, trained, truncation))
        for i, token in enumerate(ids):
            version = 3 if versions is None else versions[i]
            self.tokens.append((token, after, number, -0.5 if logprobs is None else logprobs[i], version))
            after = len(self.tokens) - 1
        return after

    def build(self) -> RecordTree:
        order = self._depth_first()
        new_index = {old: new for new, old in enumerate(order)} | {-1: -1}
        rows = [self.tokens[old] for old in order]
        dispatches_N = np.array([row[2] for row in rows], dtype=np.int32)
        return RecordTree(
            record_id=self.record_id,
            token_ids_N=np.array([row[0] for row in rows], dtype=np.int32),
            parents_N=np.array([new_index[row[1]] for row in rows], dtype=np.int32),
            dispatches_N=dispatches_N,
            logprobs_N=np.array([row[3] for row in rows], dtype=np.float32),
            versions_N=np.array([row[4] for row in rows], dtype=np.int32),
            dispatches=tuple(self.dispatches),
        )

    def _depth_first(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for node, (_, parent, *_) in enumerate(self.tokens):
            children.setdefault(parent, []).append(node)
        order, stack = [], list(reversed(children[-1]))
        while stack:
            order.append(stack.pop())
            stack.extend(reversed(children.get(order[-1], [])))
        return order


def random_record(rng: np.random.Generator, record_id: str, prompt: Sequence[int]) -> RecordTree:
    """A prompt, then up to four turns, each continuing the last one or an earlier place; so few words that records collide."""
    builder = RecordBuilder(record_id)
    places = [builder.context(prompt)]
    for turn in range(rng.integers(1, 5)):
        after = places[-1] if rng.random() < 0.6 else int(rng.choice(places))
        ids = rng.integers(0, 3, size=rng.integers(0, 5)).tolist()
        after = builder.reply(
            ids,
            after,
            logprobs=(-3.6 + 0.35 * rng.standard_normal(len(ids))).tolist(),
            versions=sorted((turn + 2 * i) % NUM_VERSIONS for i in range(len(ids))),  # they change in the middle of it
            advantage=float(rng.choice([1.3, -0.7, 0.4, -1.1, 0.0])),
            temperature=float(rng.choice([1.0, 1.0, 0.7])),
            trained=bool(rng.random() < 0.85),
        )
        places.append(builder.context(rng.integers(3, 5, size=rng.integers(0, 3)).tolist(), after))
    return builder.build()


def random_group(seed: int, num_records: int = 4) -> list[RecordTree]:
    """Records with shared prompts, prompts that are prefixes of others, other roots, and sometimes an exact duplicate."""
    rng = np.random.default_rng(seed)
    prompts = [[7, 8, 9, 10], [7, 8], [7, 8, 11, 12, 13], [20, 21]]
    records = [random_record(rng, f"r{i}", prompts[int(rng.integers(0, 4))]) for i in range(num_records)]
    if rng.random() < 0.5:
        records.append(records[int(rng.integers(0, num_records))])
    return records


def random_tree_record(
    rng: np.random.Generator, num_tokens: int, num_runs: int, vocabulary: int = 50_000
) -> RecordTree:
    """A record of exactly this size, of about this many runs, for measuring time: no Python per token here either."""
    cuts = np.sort(rng.choice(np.arange(1, num_tokens), size=num_runs - 1, replace=False))
    parents_N = np.arange(-1, num_tokens - 1, dtype=np.int32)
    for cut in cuts[rng.random(len(cuts)) < 0.3]:
        path_end = int(cut) - 1
        for _ in range(int(rng.integers(1, 4))):  # go up a few runs: stays depth-first
            start = path_end - int(np.argmax(parents_N[path_end::-1] != np.arange(path_end - 1, -2, -1)))
            if parents_N[start] < 0 or start == 0:
                break
            path_end = int(parents_N[start])
        parents_N[cut] = path_end
    dispatch_N = np.full(num_tokens, -1, dtype=np.int32)
    sampled = [(int(a), int(b)) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    for number, (start, stop) in enumerate(sampled):
        dispatch_N[start:stop] = number
    return RecordTree(
        record_id="large",
        token_ids_N=rng.integers(0, vocabulary, num_tokens).astype(np.int32),
        parents_N=parents_N,
        dispatches_N=dispatch_N,
        logprobs_N=np.zeros(num_tokens, dtype=np.float32),
        versions_N=np.where(dispatch_N >= 0, 1, -1).astype(np.int32),
        dispatches=tuple(TreeDispatch(str(i), i, 1.0) for i in range(len(sampled))),
    )


def tiny_model(
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float64,
    tied: bool = True,
    attention: str = "sdpa",
    head_dim: int = 8,
    layers: int = 2,
    **settings: Any,
) -> PreTrainedModel:
    """Qwen3 with random weights: grouped-query attention, rotary positions; more `settings` of its config."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        attn_implementation=attention,
        **settings,
    )
    return spread(Qwen3ForCausalLM(config).to(dtype))


def tiny_experts_model(
    seed: int = 0, *, num_experts: int = 4, dtype: torch.dtype = torch.float64, attention: str = "sdpa"
) -> PreTrainedModel:
    """Qwen3-MoE with random weights: a dense layer, then two of `num_experts`, of which a token chooses two."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_hidden_layers=3,
        mlp_only_layers=[0],
        num_experts=num_experts,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        attn_implementation=attention,
        experts_implementation="batched_mm",
    )
    return spread(Qwen3MoeForCausalLM(config).to(dtype))


def spread(model: PreTrainedModel) -> PreTrainedModel:
    """The usual initialization is so small that every token is equally likely."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.0 if "norm" in name else 6.0)
    return model.train()


@dataclass(frozen=True)
class Token:
    """One trained token of one record, as one forward per sequence sees it."""

    new: Tensor
    old: float
    advantage: float
    turn: int
    entropy: Tensor | None = None
    proximal: float | None = None
    reference: float | None = None
    staleness: float = 0.0


def logprobs_one_by_one(
    model: nn.Module, records: Sequence[RecordTree], reference: nn.Module | None = None
) -> list[list[Token]]:
    """Each root-to-leaf sequence of each record forwarded on its own; a token of several branches is read from the first.

    Their staleness is `STALENESS`.
    """
    found = [_record_one_by_one(model, record) for record in records]
    if reference is not None:
        with torch.no_grad():
            frozen = [_record_one_by_one(reference, record) for record in records]
        found = [
            [dataclasses.replace(t, reference=r.new.item()) for t, r in zip(tokens, references, strict=True)]
            for tokens, references in zip(found, frozen, strict=True)
        ]
    return found


def _record_one_by_one(model: nn.Module, record: RecordTree) -> list[Token]:
    found: dict[int, Token] = {}
    for leaf in record.leaves():
        path = record.path(leaf)
        ids = torch.from_numpy(record.token_ids_N[path].astype(np.int64))
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        for place in range(1, len(path)):
            node = int(path[place])
            if node in found or not record.trained_N[node]:
                continue
            dispatch = record.dispatches[record.dispatches_N[node]]
            distribution = torch.log_softmax(logits[place - 1] / float(np.float32(dispatch.temperature)), dim=-1)
            old, advantage = float(record.logprobs_N[node]), float(np.float32(dispatch.advantage))
            entropy = -(distribution.exp() * distribution).sum()
            staleness = STALENESS.of(int(record.versions_N[node]))
            found[node] = Token(distribution[ids[place]], old, advantage, dispatch.turn, entropy, staleness=staleness)
    return [found[node] for node in sorted(found)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all gradients, by parameter; a parameter without one counts as zero."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()
    }


def relative_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference in any parameter's gradient, relative to that parameter's largest gradient."""
    assert found.keys() == expected.keys()
    return max(float((found[k] - e).abs().max() / e.abs().max().clamp(min=1e-30)) for k, e in expected.items())


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numel = max([self.numel, *made])
        return result


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, which is cut where several processes train."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
