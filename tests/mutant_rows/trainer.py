"""Protections of the trainer's checkpoints and published weights."""

from tests.mutant_rows.mutant import Mutant

LATE = "tests/trainer/test_late_publisher.py"
DURABLE = "tests/trainer/test_durability.py"

SHARED_DEVICE = "tests/trainer/test_shared_device.py"

LOGPROBS = "tests/trainer/test_token_logprobs.py"

SUPPLY = "tests/trainer/test_supply.py"

OPTIMIZERS = "tests/trainer/test_optimizers.py"

DORA = "tests/trainer/test_dora.py"

FOUR_BITS = "tests/trainer/test_quantized_base.py"

MUTANTS = (
    Mutant(
        "log-probs: a block's largest logit scales the sum of the blocks before it",
        "trainer/modeling/logprobs.py",
        "self._powers_E * less_E + powers_EV.sum(-1)",
        "self._powers_E + powers_EV.sum(-1)",
        "tests/trainer/test_logprobs.py::test_values_and_gradients_equal_log_softmax_for_any_chunk",
    ),
    Mutant(
        "log-probs: a target outside of a block has no part in its gradient",
        "trainer/modeling/logprobs.py",
        "scale * here[:, None]",
        "scale",
        "tests/trainer/test_logprobs.py::test_values_and_gradients_equal_log_softmax_for_any_chunk",
    ),
    Mutant(
        "log-probs: a head that is not trained costs no gradient",
        "trainer/modeling/logprobs.py",
        "if ctx.needs_input_grad[1] else None",
        "if True else None",
        "tests/trainer/test_logprobs.py::test_a_head_that_is_not_trained_costs_no_gradient_of_its_own_and_saved_logits_no_product",
    ),
    Mutant(
        "a 4-bit base has the very numbers of the files",
        "trainer/modeling/quantized_base.py",
        "        if torch.equal(functional.dequantize_4bit(codes, state).to(weights.dtype), weights):\n",
        "        if True:\n",
        f"{FOUR_BITS}::test_a_single_weight_off_the_nf4_grid_is_refused",
    ),
    Mutant(
        "a 4-bit base is published",
        "trainer/publishing/weights.py",
        "    full |= four_bit_weights(model, model.dtype)\n",
        "",
        f"{FOUR_BITS}::test_after_steps_it_is_published_as_the_whole_base_with_merged_adapters",
    ),
    Mutant(
        "a DoRA begins as its base, in bfloat16 too",
        "trainer/modeling/trainable.py",
        "            exact.data = torch.linalg.norm(layer.weight.detach().to(exact.dtype), dim=1)\n",
        "            del exact\n",
        f"{DORA}::test_it_begins_as_the_base_bit_by_bit",
    ),
    Mutant(
        "magnitudes are published",
        "trainer/modeling/trainable.py",
        "        m = None if magnitude is None else magnitude.to(exact).numpy()\n",
        "        m = None\n",
        f"{DORA}::test_merged_weights_are_those_of_pefts_merge_and_unload",
    ),
    Mutant(
        "adapters that drop are not for reinforcement learning",
        "trainer/settings/config.py",
        "        if self.model.lora and self.model.lora.lora_dropout:\n",
        "        if False:\n",
        "tests/trainer/test_dropout.py::test_reinforcement_learning_refuses_adapters_that_drop",
    ),
    Mutant(
        "what is frozen stays frozen in split layers",
        "trainer/modeling/tensor_parallel.py",
        "        parameter.requires_grad_(trained[name])  # some",
        "        del parameter  # some",
        "tests/trainer/test_trainable.py::test_processes_that_share_each_layer_train_the_parameters_of_one",
    ),
    Mutant(
        "adapters whose parts do not compute the whole are not split",
        "trainer/modeling/tensor_parallel.py",
        "    _check_adapters(adapted, mesh.size())\n",
        "",
        "tests/trainer/test_trainable.py::test_adapters_whose_parts_would_not_compute_the_whole_are_not_split",
    ),
    Mutant(
        "states of another optimizer are not loaded",
        "trainer/checkpoints/restore.py",
        "    if saved != optim:\n",
        "    if False:\n",
        f"{OPTIMIZERS}::test_states_of_another_optimizer_or_layout_are_refused",
    ),
    Mutant(
        "8-bit states keep their type in a resume",
        "trainer/step/adamw_8bit.py",
        "            self.state[parameter].update({name: saved[name].clone() for name in OF_A_SHARD if name in saved})\n",
        "            del saved, parameter\n",
        f"{OPTIMIZERS}::test_a_resumed_run_equals_the_uninterrupted_one_bit_by_bit",
    ),
    Mutant(
        "8-bit states of each rank are apart in a checkpoint",
        "trainer/checkpoints/eight_bit_states.py",
        'f"{name}.rank-{rank}" if',
        "name if",
        f"{OPTIMIZERS}::test_two_processes_resume_their_8_bit_states_bit_by_bit",
    ),
    Mutant(
        "a checkpoint with flipped bits is not continued",
        "trainer/checkpoints/digests.py",
        "    verify_files(folder, manifest)\n",
        "",
        "tests/trainer/test_checkpoint.py"
        "::test_a_checkpoint_with_one_flipped_bit_is_refused_with_its_file_and_the_one_before",
    ),
    Mutant(
        "a training task has a temperature that can be trained at",
        "shared/tasks/files.py",
        "    if target.split == TRAIN_SPLIT and payload.temperature is not None:",
        "    if target.split == FORK_SPLIT and payload.temperature is not None:",
        "tests/sampler/test_temperatures.py::test_a_task_is_refused_by_its_line_in_training_alone",
    ),
    Mutant(
        "a model that lacks a tensor is not trained",
        "trainer/modeling/model.py",
        "    check_loaded(directory, loading)\n",
        "",
        "tests/trainer/test_whole_models.py::test_a_model_that_is_not_whole_is_refused_by_trainer_and_engine",
    ),
    Mutant(
        "a model that lacks a tensor is not served",
        "sampler/engine/local/runner.py",
        "        check_loaded(model_path, loading)\n",
        "",
        "tests/trainer/test_whole_models.py::test_a_model_that_is_not_whole_is_refused_by_trainer_and_engine",
    ),
    Mutant(
        "a tied model has no other head",
        "trainer/modeling/model.py",
        """    check_tied(directory, sorted(directory.glob("*.safetensors")))\n""",
        "",
        "tests/trainer/test_whole_models.py::test_a_head_of_its_own_in_a_tied_model_is_refused",
    ),
    Mutant(
        "a token that the template writes lies within the embedding",
        "sampler/core/engines/pool/engines.py",
        "for token in (*ids, *used) if",
        "for token in ids if",
        "tests/sampler/test_model_check.py"
        "::test_a_token_that_the_template_writes_beyond_the_embedding_is_refused_and_an_unused_one_is_not",
    ),
    Mutant(
        "a run of skipped steps has failed",
        "trainer/reporting/moved.py",
        "if self._skipped and not self._moved:",
        "if self._skipped and self._moved:",
        "tests/trainer/test_not_finite.py::test_a_run_of_skipped_steps_has_failed_also_when_it_is_started_again",
    ),
    Mutant(
        "a gradient that is not finite names a temperature that divides by zero",
        "trainer/reporting/not_finite.py",
        "    if not _is_temperature(temperature):",
        "    if temperature < 0:",
        "tests/trainer/test_not_finite.py::test_a_temperature_that_divides_by_zero_is_named",
    ),
    Mutant(
        "equal rewards: no step of nothing else",
        "trainer/data/equal_groups.py",
        "if equal and len(equal) == len(has_advantage) and self._needs_advantage:",
        "if False:",
        f"{SUPPLY}::test_a_step_whose_groups_all_have_equal_rewards_is_not_taken_and_is_counted",
    ),
    Mutant(
        "equal rewards: dynamic sampling has a bound",
        "trainer/data/equal_groups.py",
        "replaced = equal[: self._most_resampled - self._resampled]",
        "replaced = equal[: self._most_resampled]",
        f"{SUPPLY}::test_dynamic_sampling_replaces_groups_of_equal_rewards_up_to_its_bound",
    ),
    Mutant(
        "rendezvous of one machine: on loopback",
        "trainer/launch.py",
        "    if params.max_nodes > 1:",
        "    if params.max_nodes > 0:",
        "tests/trainer/test_broadcast_store.py"
        "::test_trainers_of_one_machine_meet_on_loopback_and_gloo_and_nccl_stay_there",
    ),
    Mutant(
        "the end of the tasks: what waits for a retry may still give data",
        "shared/store/outlook.py",
        "return self.unopened or self.playing + self.failing",
        "return self.unopened or self.playing",
        f"{SUPPLY}::test_a_step_is_waited_for_as_long_as_any_task_may_give_data_and_says_what_that_waits_for",
    ),
    Mutant(
        "the end of the tasks: those that follow the held-out ones are awaited",
        "trainer/data/supply.py",
        "or (seen.in_evaluation and not self._saw_work)",
        "",
        f"{SUPPLY}::test_a_trainer_that_starts_while_held_out_tasks_are_played_waits_for_the_tasks_that_follow",
    ),
    Mutant(
        "the end of the tasks: more may be imported for a while",
        "trainer/data/supply.py",
        "return limit_s is not None and now - self._used_up_since >= limit_s",
        "return True",
        f"{SUPPLY}::test_more_tasks_within_the_time_to_wait_for_them_continue_the_run",
    ),
    Mutant(
        "stored log-probs: tokens stand in the order of their context",
        "trainer/reporting/token_logprobs.py",
        "order = np.lexsort((columns.place_E, columns.turn_E, columns.trajectory_E))",
        "order = np.argsort(columns.trajectory_E, kind='stable')",
        f"{LOGPROBS}::test_every_trained_token_is_stored_once_with_the_log_prob_of_its_own_sequence",
    ),
    Mutant(
        "stored log-probs: no number is the largest difference",
        "trainer/reporting/token_logprobs.py",
        "size_E = np.where(np.isfinite(size_E), size_E, math.inf)",
        "size_E = np.where(np.isfinite(size_E), size_E, 0.0)",
        f"{LOGPROBS}::test_a_log_prob_that_is_no_number_is_the_largest_difference",
    ),
    Mutant(
        "stored log-probs: what is clipped is marked",
        "trainer/reporting/token_logprobs.py",
        "(TokenMark.CLIPPED_LOW, outcome.too_low_E),",
        "(TokenMark.CLIPPED_LOW, outcome.dropped_token_E),",
        f"{LOGPROBS}::test_marks_say_which_tokens_the_loss_clipped",
    ),
    Mutant(
        "start of the publisher: the number in what it announces",
        "trainer/publishing/publish.py",
        "                trainer_generation=self._trainer_generation,\n",
        "",
        f"{LATE}::test_a_publisher_that_was_replaced_announces_nothing_and_deletes_nothing",
    ),
    Mutant(
        "start of the publisher: the fence",
        "trainer/publishing/publish.py",
        "            self._bridge(self._store.versions.fence(policy, trainer_generation, step))\n",
        "",
        f"{LATE}::test_a_publisher_that_was_replaced_announces_nothing_and_deletes_nothing",
    ),
    Mutant(
        "pruning spares what is evaluated",
        "trainer/publishing/publish.py",
        "[*last, *(v for v in surviving if v.version in {*awaited, *pinned} and v not in last)]",
        "[*last]",
        "tests/trainer/test_pruning.py::test_pruning_spares_a_version_until_the_last_task_of_its_round_is_settled",
    ),
    Mutant(
        "flush of what is published: the contents",
        "trainer/checkpoints/atomic_directories.py",
        "        _fsync(path)\n",
        "        pass\n",
        f"{DURABLE}::test_when_a_version_is_announced_all_earlier_ones_are_flushed_whole",
    ),
    Mutant(
        "flush of what is published: the name",
        "trainer/checkpoints/atomic_directories.py",
        "        _flush_contents(directory)\n        _fsync(directory.parent)\n",
        "        _flush_contents(directory)\n",
        f"{DURABLE}::test_when_a_version_is_announced_all_earlier_ones_are_flushed_whole",
    ),
    Mutant(
        "flush of a checkpoint: the name",
        "trainer/checkpoints/atomic_directories.py",
        "    os.rename(temporary, target)\n    if flush:\n        _fsync(target.parent)\n",
        "    os.rename(temporary, target)\n",
        f"{DURABLE}::test_a_checkpoint_is_flushed_whole",
    ),
    Mutant(
        "the last version is flushed before the next is written",
        "trainer/publishing/publish.py",
        "        self._finish_flush()\n        last = step",
        "        last = step",
        f"{DURABLE}::test_a_disk_that_refuses_a_flush_ends_the_run",
    ),
    Mutant(
        "a version that a power cut took is withdrawn",
        "trainer/publishing/publish.py",
        "            verify_version(newest)\n",
        "            pass\n",
        f"{DURABLE}::test_a_resume_publishes_again_the_version_of_its_step_that_a_power_cut_took",
    ),
    Mutant(
        "an engine's new weights: a NaN among good values",
        "sampler/engine/loading/finite.py",
        "    return bool(torch.isfinite(low) & torch.isfinite(high))",
        "    return bool(torch.isfinite(high))",
        "tests/sampler/engine/test_finite.py::test_one_value_that_is_not_finite_is_detected",
    ),
    Mutant(
        "weights that an engine requested are gathered with the device held",
        "trainer/publishing/publish.py",
        'publishing step=%d again, complete", step)\n            with self._device.held(self._learner):',
        'publishing step=%d again, complete", step)\n            if True:',
        f"{SHARED_DEVICE}::test_weights_are_published_between_steps_only_after_the_engine_sleeps",
    ),
    Mutant(
        "ranks agree on whether the device is shared",
        "trainer/step/shared_device.py",
        "self._device = _agreed(parallel.everyone.gather_objects((socket.gethostname(), settings.shared_device)))",
        "self._device = settings.shared_device",
        f"{SHARED_DEVICE}::test_all_ranks_take_turns_if_the_machine_of_one_shares_its_gpus",
    ),
)
