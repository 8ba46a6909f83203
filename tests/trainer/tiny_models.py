"""Tiny models with random weights, of every type of causal language model that transformers has and a small config can make."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

EVERY_TYPE = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
VOCABULARY = 160
LARGEST = 3_000_000  # parameters

SIZES: Mapping[str, Any] = {  # by the name that a config gives it; those that it has not are left out
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_ffn_dim": 48,
    "n_inner": 48,
    "moe_intermediate_size": 24,
    "expert_ffn_hidden_size": 24,
    "shared_expert_intermediate_size": 24,
    "shared_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "state_size": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 1,
    "ssm_state_size": 8,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MORE: Mapping[str, Mapping[str, Any]] = {  # what the names above do not make consistent
    "falcon_h1": {"mamba_d_ssm": 64, "lm_head_multiplier": 0.02},
    "bamba": {"attn_layer_indices": [1], "mamba_expand": 2},
    "falcon": {"alibi": False, "new_decoder_architecture": False, "multi_query": True},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_dt_rank": 4},
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
    "xlstm": {"num_blocks": 2, "chunk_size": 16, "qk_dim_factor": 1.0, "v_dim_factor": 1.0},
    "rwkv": {"attention_hidden_size": 32},
    "mpt": {"attn_config": {"alibi": True}},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "attention_hidden_size": 64, "attention_head_dim": 16},
    "recurrent_gemma": {"lru_width": 32, "block_types": ["recurrent", "attention"], "attention_window_size": 16},
}
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # name: type and settings
    "llama, rope dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}),
    "phi3, rope longrope": (
        "phi3",
        {
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 4,
                "long_factor": [4.0] * 4,
                "original_max_position_embeddings": 256,
            },
        },
    ),
    "mistral, window 16": ("mistral", {"sliding_window": 16}),
    "mistral, window 400": ("mistral", {"sliding_window": 400}),
    "falcon, alibi": ("falcon", {"alibi": True}),
    "granite, logits_scaling": ("granite", {"logits_scaling": 8.0}),
    "phimoe, router noise": ("phimoe", {"router_jitter_noise": 0.3, "input_jitter_noise": 0.3}),
    "qwen3, attention dropout": ("qwen3", {"attention_dropout": 0.3}),
}


def tiny(name: str, seed: int = 0) -> PreTrainedModel:
    """Of a type, or of one of VARIANTS. Raises what transformers raises where its config cannot be so small."""
    kind, more = VARIANTS.get(name, (name, {}))
    return build(tiny_config(kind, **more), seed)


def build(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """With weights large enough that every token and every head matters."""
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{config.model_type}: {size} parameters with these settings; expected at most {LARGEST}")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    assert isinstance(model, PreTrainedModel)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
    return model.eval()


def tiny_config(kind: str, **more: Any) -> PreTrainedConfig:
    """The config of a type with SIZES, wherever it has them, also in the config of its text."""
    config_class: Any = CONFIG_MAPPING[kind]
    settings = {**_fitting(config_class), **MORE.get(kind, {}), **more}
    texts = {
        name: _fitting(part) | dict(MORE.get(kind, {}))
        for name, part in (getattr(config_class, "sub_configs", None) or {}).items()
        if name in ("text_config", "decoder", "decoder_config")
    }
    if texts:
        settings = {"pad_token_id": 0, **texts}
    if "kv_lora_rank" in settings and "num_key_value_heads" in settings:  # latent attention: a key for every query
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    if "layer_types" in _names(config_class) - set(config_class.attribute_map) and "layer_types" not in settings:
        default = getattr(config_class(), "layer_types", None)
        if default:
            kinds = list(dict.fromkeys(default))
            settings["layer_types"] = (kinds * 2)[: max(2, len(kinds))]
            settings["num_hidden_layers"] = len(settings["layer_types"])
    config = config_class(**settings)
    config.is_decoder = True
    assert isinstance(config, PreTrainedConfig)
    return config


def _names(config_class: Any) -> set[str]:
    names = set(inspect.signature(config_class.__init__).parameters)
    if dataclasses.is_dataclass(config_class):
        names |= {field.name for field in dataclasses.fields(config_class)}
    return names | set(getattr(config_class, "attribute_map", {}))


def _fitting(config_class: Any) -> dict[str, Any]:
    names = _names(config_class)
    mapped = set(getattr(config_class, "attribute_map", {}).values())
    return {
        name: value
        for name, value in SIZES.items()
        if name in names and (name not in getattr(config_class, "attribute_map", {}) or name in mapped)
    }
