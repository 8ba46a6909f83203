"""The message for an unknown option: its successor if it is AgentRL's, else the most similar names."""

import difflib
from collections.abc import Iterable

LAUNCHER = "scripts/minirl_example.sh"
SUCCESSORS = {  # options of AgentRL (OpenBMB AgentCPM) and of its TrainingArguments, and their replacements here
    "accelerator_config": "nothing: the stream shards each step over processes",
    "activation_offloading": "activation_offload (with activation_checkpointing)",
    "attention_implementation": "attn_implementation",
    "balance_samples": "balance_sample",
    "beta1": "nothing for CE-GRPO's weights; AdamW's is adam_beta1",
    "beta2": "nothing for CE-GRPO's weights; AdamW's is adam_beta2",
    "bf16": "dtype bfloat16",
    "bypass_causal_mask_check": "nothing: attention masks come from the token tree",
    "compress_history": "new_context",
    "config_file": f"accelerate_config (assets/fsdp2.yml instead of fsdp2_dst.yml) of {LAUNCHER}",
    "cpu_ram_efficient_loading": "nothing: no process ever loads the whole model",
    "dataloader_drop_last": "nothing: a step always has groups_per_step groups",
    "dataloader_num_workers": "prefetch",
    "dataloader_prefetch_factor": "prefetch",
    "decoder_sparse_step": "nothing: the model's config.json contains it",
    "dynamic_batching": "max_tokens_per_row: rows are always packed",
    "enable_loss_parallel": "logprob_chunk: logits are computed in chunks",
    "enable_oss": "nothing: images are not supported",
    "enable_sampling": "nothing: samplers are separate processes (num_samplers 0 starts none)",
    "eval_strategy": "eval_steps (0: no evaluation during training)",
    "fp16": "dtype bfloat16",
    "frequency_penalty": "eval_sampling, for evaluation; in training it would falsify the stored log-probs",
    "gradient_accumulation_steps": "groups_per_step: groups per optimizer step, over all processes",
    "gradient_checkpointing": "activation_checkpointing",
    "inf_ep_size": "engine_command of the keeper: SGLang's --ep-size",
    "inf_mem_ratio": "engine_command of the keeper: SGLang's --mem-fraction-static",
    "inf_tp_size": "engine_command of the keeper: SGLang's --tp-size",
    "logging_steps": "nothing: every step is logged",
    "log_entropy": "with_entropy",
    "loss_seq_chunk_size": "logprob_chunk",
    "lr_scheduler_type": "lr_schedule",
    "max_concurrent_samples_per_process": "max_concurrent_episodes",
    "max_pixels": "nothing: images are not supported",
    "max_prompt_length": "max_prompt_tokens",
    "mcp_auth_token": "mcp_manager_url: an mcpServers JSON with headers",
    "mcp_server_name": "tools (of a task) or exclude_tools, such as files.*",
    "model_name": "policy",
    "num_train_epochs": f"train_epochs of {LAUNCHER}",
    "optim_args": "adam_beta1 and adam_beta2",
    "oss_connection_string": "nothing: images are not supported",
    "output_router_logits": "router_aux_loss_coef",
    "pad_to_maximum": "nothing: rows are packed, not padded",
    "pad_to_multiple_of": "max_tokens_per_row: rows are packed, not padded",
    "per_device_train_batch_size": "groups_per_step (of all processes) and max_tokens_per_row (of one forward)",
    "preferred_sampling_params": "temperature, top_p, top_k, min_p, and eval_sampling for evaluation",
    "presence_penalty": "eval_sampling, for evaluation; in training it would falsify the stored log-probs",
    "remove_experience": "nothing: all records are kept",
    "remove_unused_columns": "nothing: extra fields of a task go into its metadata",
    "resample_error_records": "max_failures: failed slots are retried automatically",
    "run_name": "run, the script's first argument",
    "save_only_model": "keep_checkpoints (tandem export-model writes the model alone)",
    "shift_labels": "nothing: log-probs are always shifted",
    "sync_sampling": "max_staleness 0",
    "target_concurrency": "adaptive_concurrency",
    "torch_dtype": "dtype",
    "trainer": "nothing: the model's config.json names its class",
    "trust_remote_code": "nothing: models are those of transformers",
    "tune_vision": "nothing: images are not supported",
}


def unknown_option(name: str, known: Iterable[str], kind: str = "option") -> str:
    """`unknown option …`, and its successor, or the nearest names, or all that exist."""
    successor = SUCCESSORS.get(name.rpartition(".")[2])
    if successor:
        return f"unknown {kind} {name!r}: AgentRL's name; its successor here: {successor} (docs/start/from_agentrl.md)"
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=3)
    if nearest:
        return f"unknown {kind} {name!r}; did you mean {' or '.join(nearest)}?"
    return f"unknown {kind} {name!r}; expected one of {', '.join(names)}"
