"""The routers of a mixture of experts, found the same way by the engine that records their choices and the trainer that repeats
them. Knows no torch: a model of transformers is an object with modules.
"""

from typing import Any


def routers_of(model: Any) -> list[tuple[int, Any]]:
    """(layer, router) in order, of a model of transformers: the modules whose logits it can record. []: it has none, has several
    kinds (JetMoE), or does not say how many experts a token gets."""
    recorder = (getattr(model.base_model, "_can_record_outputs", None) or {}).get("router_logits")
    if (
        recorder is None
        or isinstance(recorder, list)
        or not hasattr(model.config.get_text_config(), "num_experts_per_tok")
    ):
        return []
    kind = getattr(recorder, "target_class", recorder)
    named = [(name, module) for name, module in model.base_model.named_modules() if isinstance(module, kind)]
    return [(next((int(part) for part in name.split(".") if part.isdigit()), 0), module) for name, module in named]
