"""Every type of causal language model that transformers has, through the trainer's own choice of how to compute it.

    python -m tests.trainer.model_table                    # all that a tiny config can build: about ten minutes of one CPU
    python -m tests.trainer.model_table falcon_h1 "mistral, window 16"

For each a line: the way that was taken or the refusal, what the choice measured, and then, on other data, the largest difference
of a log-prob (nats) and of a parameter's gradient (relative) from one forward per sequence of the model.
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as foreign_logging

from shared.errors import ConfigError
from tests.trainer.builders import gradients, logprobs_one_by_one, random_group
from tests.trainer.tiny_models import EVERY_TYPE, VARIANTS, tiny
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.forward_choice import FOREIGN_ERRORS, choose_forward_mode, set_attention
from trainer.modeling.forward_ways import Way, tree_obstacle
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

CPU = torch.device("cpu")
ROW = 60  # tokens; beyond the windows of the tiny configs


@dataclass(frozen=True, slots=True)
class Line:
    """`way` None: refused, and why."""

    name: str
    way: Way | None
    measured: str
    logprob_error: float = 0.0
    gradient_error: float = 0.0

    @property
    def right(self) -> bool:
        return self.logprob_error < 1e-4 and self.gradient_error < 1e-3

    def __str__(self) -> str:
        if self.way is None:
            return f"{self.name:34} refused: {self.measured}"
        kind = "tree" if self.way.trees else "sequences"
        return (
            f"{self.name:34} {kind:10} {self.way.attention:8} {self.way.head.name.lower():8} {self.measured:48} "
            f"then {self.logprob_error:.1e} nats, {100 * self.gradient_error:.2g} %"
        )


def line(name: str, model: PreTrainedModel) -> Line:
    """Choose a way, then compare it on random records with the model's own forward."""
    lm = TreeLM(model)
    try:
        found = choose_forward_mode(lm, "auto", CPU, obstacle=tree_obstacle(model.config))
    except ConfigError as exc:
        return Line(name, None, str(exc))
    return Line(name, found.way, str(found.difference), *_errors(lm, model))


def _errors(lm: TreeLM, model: PreTrainedModel) -> tuple[float, float]:
    """Of all trained tokens of some records, in rows shorter than the probe, and longer than the tiny models' windows."""
    records, linear = random_group(3) + random_group(4), not lm.way.trees
    tree = merge(records, merging=Merging.LINEAR if linear else Merging.TREE)
    model.zero_grad()
    found: list[Tensor] = []
    for row in pack([tree], ROW, one_sequence_per_row=linear):
        logprob_E, _ = row_logprobs(lm, row, attn=lm.mask(CPU))
        (logprob_E * row.advantage_E).sum().backward()
        found.append(logprob_E.detach())
    given, given_E = gradients(model), torch.cat(found).sort().values  # rows are not in the order of the records
    model.zero_grad()
    set_attention(model, "eager")
    tokens = [token for of_record in logprobs_one_by_one(model, records) for token in of_record if token.advantage]
    every = [token for of_record in logprobs_one_by_one(model, records) for token in of_record]
    torch.stack([token.new * token.advantage for token in tokens]).sum().backward()
    own, own_E = gradients(model), torch.stack([token.new.detach() for token in every]).sort().values
    largest = max(float(gradient.norm()) for gradient in own.values())
    relative = [float((given[k] - g).norm()) / max(float(g.norm()), 1e-2 * largest) for k, g in own.items()]
    return float((given_E - own_E).abs().max()), max(relative)


def lines(names: Sequence[str]) -> Iterator[Line]:
    """One after the other; a type that cannot be built so small has a line that says so."""
    for name in names:
        try:
            model = tiny(name)
        except (*FOREIGN_ERRORS, StrictDataclassError) as exc:
            yield Line(name, None, f"no tiny model: {type(exc).__name__}: {' '.join(str(exc).split())[:120]}")
            continue
        yield line(name, model)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; exit status 1 where a way was taken that is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainer.model_table", description=__doc__)
    parser.add_argument("names", nargs="*", help="types or variants; none: all")
    names = parser.parse_args(argv).names or [*VARIANTS, *EVERY_TYPE]
    foreign_logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    for found in lines(names):
        sys.stdout.write(f"{found}\n")
        sys.stdout.flush()
        counts["refused or not built" if found.way is None else "tree" if found.way.trees else "sequences"] += 1
        if found.way is not None and not found.right:
            wrong.append(found.name)
    sys.stdout.write(f"{dict(counts)}; wrong: {', '.join(wrong) or 'none'}\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
