"""Protections of training on truncated distributions."""

from tests.mutant_rows.mutant import Mutant

SAMPLER, FLATTEN = "tests/sampler/test_truncation.py", "tests/shared/test_flatten.py"
TRAINER = "tests/trainer/test_truncated_logprobs.py"
VALUES = f"{TRAINER}::test_values_gradients_and_entropy_are_those_of_a_log_softmax_over_the_support"
LAUNCH = "tests/system/test_launch_task_checks.py"

MUTANTS = (
    Mutant(
        "truncation: no grammar together with it",
        "shared/rules/run_rules.py",
        'if self.agents.agent_output_format == "constrain" and not self.sampling.truncation.keeps_all:\n',
        "if False:\n",
        f"{SAMPLER}::test_a_grammar_and_a_truncation_are_refused_together",
    ),
    Mutant(
        "truncation: a reply without the mark is not kept",
        "sampler/core/episode/dispatch.py",
        "    if of_the_whole and not truncation.keeps_all:\n",
        "    if False:\n",
        f"{SAMPLER}::test_a_trained_reply_whose_log_probs_are_those_before_truncation_is_refused",
    ),
    Mutant(
        "truncation: log-probs of another distribution are not trained",
        "shared/tokens/flatten.py",
        "        if used.trained and used.truncation != drawn_from:\n",
        "        if False:\n",
        f"{FLATTEN}::test_log_probs_of_another_distribution_than_the_tokens_are_never_trained",
    ),
    Mutant(
        "truncation: SGLang's log-probs are before it",
        "shared/truncation.py",
        'ENGINES = ("local", "vllm")\n',
        'ENGINES = ("local", "vllm", "sglang")\n',
        f"{SAMPLER}::test_an_engine_that_reports_log_probs_before_truncation_is_refused",
    ),
    Mutant(
        "truncation: a launch with SGLang is refused",
        "scripts/tandem/launch/task_checks.py",
        "        if problem := truncation.engine_problem(kind):\n",
        "        if False:\n",
        f"{LAUNCH}::test_an_engine_that_could_not_sample_what_training_truncates_ends_the_launch",
    ),
    Mutant(
        "truncation: a change of the rules is refused while SGLang serves",
        "scripts/tandem/commands/rules.py",
        "        if (problem := rules.sampling.truncation.engine_problem(engine.kind)) is not None:\n",
        "        if False:\n",
        "tests/tandem/commands/test_cli_rules.py::test_a_truncation_that_a_live_engine_cannot_train_is_refused",
    ),
    Mutant(
        "truncation: the local engine renormalizes",
        "sampler/engine/local/sampling.py",
        "scatter_(0, index, ordered.log_softmax(-1))",
        "scatter_(0, index, ordered)",
        "tests/sampler/engine/local/test_models.py::test_truncation_keeps_the_likeliest_tokens_and_renormalizes",
    ),
    Mutant(
        "truncation: the trainer's distribution is renormalized, forward",
        "trainer/modeling/logprobs.py",
        "                    logits.masked_fill_(tail, DROPPED)\n",
        "",
        VALUES,
    ),
    Mutant(
        "truncation: the trainer's distribution is renormalized, backward",
        "trainer/modeling/logprobs.py",
        "                if len(threshold_E):\n",
        "                if False:\n",
        VALUES,
    ),
    Mutant(
        "truncation: the model's own logits too",
        "trainer/modeling/logprobs.py",
        "        scaled_EV = scaled_EV.masked_fill(dropped_EV, DROPPED)\n",
        "",
        VALUES,
    ),
    Mutant(
        "truncation: the sampled token is always kept",
        "trainer/modeling/truncation.py",
        "    return dropped_EV.scatter_(-1, targets_E[:, None], value=False), outside_E\n",
        "    return dropped_EV, outside_E\n",
        VALUES,
    ),
    Mutant(
        "truncation: an agent's request has the run's",
        "sampler/gateway/unused.py",
        "if _plain(name, value) != ours[name]]",
        "if False]",
        "tests/sampler/gateway/test_unused.py::test_an_agents_truncation_is_used_if_it_is_the_runs",
    ),
    Mutant(
        "truncation: SFT trains the whole distribution",
        "trainer/sft/records.py",
        "temperature=1.0, truncation=WHOLE)",
        "temperature=1.0)",
        "tests/trainer/test_sft_records.py::test_a_truncated_reply_is_trained_in_the_whole_distribution",
    ),
)
