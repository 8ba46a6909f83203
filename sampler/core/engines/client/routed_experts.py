"""Routed experts in an engine's reply: which experts of each layer computed a token, for the trainer's routers to repeat.

    request    return_routed_experts, routed_experts_start_len: the first position that is not known yet
    reply      meta_info.routed_experts: base64 of int32 [tokens, layers, experts of a token], up to the last token but one

SGLang's form (0.5.23, with --enable-return-routed-experts), and that of our local engine. The number of layers and of experts is
the model's, which a sampler does not know: rows stay whole.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sampler.core.engines.client.fields import broken, text
from sampler.core.errors import EngineContractBroken

if TYPE_CHECKING:  # numpy: for runs that have some
    import numpy as np
    import numpy.typing as npt

    Int32 = npt.NDArray[np.int32]

MOST_EXPERTS = 2**16  # of a layer


def experts_request(start: int) -> dict[str, Any]:
    """The request's fields."""
    return {"return_routed_experts": True, "routed_experts_start_len": start}


def read_experts(where: str, answer: Mapping[str, Any], rows: int, *, skipped: int = 0) -> "Int32 | None":
    """[rows, choices] of a reply whose request names `skipped` positions more. None: a reply that was aborted says none, or there
    is no row. Raises EngineContractBroken for other numbers of rows and for experts that are none."""
    import numpy as np

    meta = answer["meta_info"]
    encoded = meta.get("routed_experts")
    if encoded is None and meta["finish_reason"]["type"] == "abort":
        return None
    if encoded is None:
        raise EngineContractBroken(
            f"{where}: routed_experts is missing, and router_replay is on; start SGLang with --enable-return-routed-experts, and "
            "with a model that has experts"
        )
    try:
        experts = np.frombuffer(base64.b64decode(text(where, "routed_experts", encoded), validate=True), dtype="<i4")
    except (binascii.Error, ValueError) as exc:
        raise EngineContractBroken(f"{where}: routed_experts is not base64 of 32-bit numbers: {exc}") from exc
    if rows <= 0:
        return None
    width, rest = divmod(len(experts), rows + skipped)
    if rest or not width:
        raise EngineContractBroken(
            f"{where}: routed_experts has {len(experts)} numbers; expected as many for each of {rows + skipped} tokens"
        )
    if not 0 <= experts.min() <= experts.max() < MOST_EXPERTS:
        worst = experts.min() if experts.min() < 0 else experts.max()
        raise broken(where, "routed_experts", int(worst), f"experts from 0 to {MOST_EXPERTS - 1}")
    of_tokens: Int32 = experts.reshape(rows + skipped, width)[skipped:]
    return of_tokens
