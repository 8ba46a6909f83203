"""The experts of a model in stages, each with the routing of its own layers: their balance in one, their counts in all."""

from collections.abc import Callable, Sequence

from torch import Tensor

from trainer.losses import LossConfig
from trainer.modeling.forward import Forwarded, TreeLM
from trainer.modeling.pipeline import Balance
from trainer.modeling.routing import Routing, joined_stages, router_aux_loss
from trainer.process.parallel import Parallel

OverRanks = Callable[[Sequence[Routing]], Routing | None]  # the sum over rows and ranks


def balance_of_stage(
    lm: TreeLM,
    loss: LossConfig,
    parallel: Parallel,
    over_ranks: OverRanks,
    known: Sequence[Forwarded],
    *,
    num_rows: int,
) -> Balance | None:
    """Of the experts in this stage's layers, by row. `known`: of all rows or of all but the first, whose own forward says the
    rest. None: no loss balances them.
    """
    if not loss.router_aux_loss_coef:
        return None
    assert lm.replay is not None, "open_learner refuses a coefficient without experts"
    layers = lm.replay.shape.with_experts
    routings = [forwarded.routing for forwarded in known if forwarded.routing is not None]
    whole: Routing | None = None

    def balance(own: Routing) -> Tensor:
        nonlocal whole
        if whole is None:
            whole = over_ranks(routings if len(known) == num_rows else [own.detached(), *routings])
            assert whole is not None, "of at least one row"
        return router_aux_loss(own, whole, loss.router_aux_loss_coef, layers) * parallel.num_shards

    return balance


def routing_of_stages(lm: TreeLM, over_ranks: OverRanks, done: Sequence[Forwarded]) -> Routing | None:
    """Of all rows, ranks and layers, in the order of the layers."""
    assert lm.stage is not None, "of a model in stages"
    if lm.experts_per_token is None:
        return None
    own = over_ranks([forwarded.routing for forwarded in done if forwarded.routing is not None])
    on_host = None if own is None else Routing(*(tensor.cpu() for tensor in own))
    return joined_stages(lm.stage.pipeline.peers.gather_objects(on_host))
