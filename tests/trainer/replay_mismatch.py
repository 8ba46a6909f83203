"""What router replay takes from the difference between an engine in bfloat16 and a trainer in float32:
python -m tests.trainer.replay_mismatch [--seeds 3]

A random Qwen3-MoE samples 16 sequences of 48 tokens in bfloat16, and says experts and log-probs; the trainer computes the same
tokens in float32, with routers that choose by themselves, and with those that repeat. Printed, over the sampled tokens: mean and
largest |trainer - engine| in nats, k3, and the share of experts that the trainer's routers would not have chosen.
"""

import argparse
import dataclasses

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.trainer.builders import RecordBuilder
from trainer.modeling.forward import TreeLM, forward_row
from trainer.trees.experts import RowExperts
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge

SEQUENCES, LENGTH, LAYERS, EXPERTS, TOP_K = 16, 48, 6, 32, 4


def tiny_experts(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=512, hidden_size=128, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=LAYERS,
        num_experts=EXPERTS, num_experts_per_tok=TOP_K, norm_topk_prob=True, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, max_position_embeddings=256, initializer_range=0.08, attn_implementation="sdpa",
        experts_implementation="eager", eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).eval()


@torch.no_grad()
def sampled(engine: PreTrainedModel) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [sequences, length], their log-probs but of the first, and the experts [sequences, length, choices]."""
    first = torch.randint(0, 512, (SEQUENCES, 1))
    ids = engine.generate(first, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=LENGTH - 1)
    chosen: list[Tensor] = []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda _, args, out: chosen.append(out[2]))
        for layer in engine.model.layers
    ]
    logits = engine(input_ids=ids, use_cache=False).logits.float()
    for hook in hooks:
        hook.remove()
    logprobs = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return ids, logprobs, torch.cat(chosen, 1).view(SEQUENCES, LENGTH, -1)


def row_of(ids: list[int], logprobs: list[float], experts: Tensor) -> Row:
    builder = RecordBuilder("r")
    builder.reply(ids[1:], builder.context(ids[:1]), logprobs=logprobs)
    (row,) = pack([merge([builder.build()])], 10_000)
    return dataclasses.replace(row, experts=RowExperts(experts.to(torch.uint8), torch.ones(len(ids), dtype=torch.bool)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    table = Table("seed", "routers", "mean, nats", "largest", "k3", "other experts")
    for seed in range(parser.parse_args().seeds):
        engine, model = tiny_experts(seed).bfloat16(), tiny_experts(seed)
        model.load_state_dict({name: tensor.float() for name, tensor in engine.state_dict().items()})
        rows = [row_of(*(x.tolist() for x in of[:2]), of[2]) for of in zip(*sampled(engine), strict=True)]
        lm = TreeLM(model)
        assert lm.replay is not None
        for routers in ("choose", "repeat"):
            differences = []
            for row in rows:
                forwarded = forward_row(lm, row if routers == "repeat" else row.without_experts())
                differences.append(forwarded.logprob_E.detach() - row.old_logprob_E)
            d = torch.cat(differences).double()
            counts = lm.replay.counts.tolist()
            other = f"{100 * counts[3] / counts[2]:.2f} %" if counts[2] else ""
            k3 = (d.exp() - d - 1).mean()
            table.add_row(str(seed), routers, f"{d.abs().mean():.2e}", f"{d.abs().max():.3f}", f"{k3:.2e}", other)
    Console().print(table)


if __name__ == "__main__":
    main()
