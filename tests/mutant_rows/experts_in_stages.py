"""Mixtures of experts in stages: whose routers a stage has, what is counted over all of them, and what is repeated when."""

from tests.mutant_rows.mutant import Mutant

TEST_EXPERTS = "tests/trainer/test_experts_in_stages.py"
OF_STAGE = f"{TEST_EXPERTS}::test_each_stage_repeats_the_choices_of_its_own_layers"
TRAINED_ALIKE = f"{TEST_EXPERTS}::test_balanced_and_replayed_experts_train_the_parameters_of_one_process"
TWO_PASSES = f"{TEST_EXPERTS}::test_two_passes_balance_experts_next_to_a_reference_model_that_chooses_by_itself"
ACCUMULATE, OF_STAGES = "trainer/step/accumulate.py", "trainer/step/stage_routing.py"
REPLAY_OF = "trainer/modeling/router_replay.py"

MUTANTS = (
    Mutant(
        "experts in stages: layers computed again repeat the experts of their own row",
        "trainer/modeling/pipeline.py",
        "            self._lm.replay.use_again(row.experts)\n",
        "            pass\n",
        f"{TEST_EXPERTS}::test_layers_that_are_computed_again_repeat_the_experts_of_their_own_row",
    ),
    Mutant(
        "experts in stages: a stage has its own routers alone",
        "trainer/modeling/pipeline_parallel.py",
        "        replay.keep(model)\n",
        "        pass\n",
        OF_STAGE,
    ),
    Mutant(
        "experts in stages: routers keep their numbers in the whole model",
        REPLAY_OF,
        "self._routers = [(index, router) for index, router in self._routers if router in present]",
        "self._routers = list(enumerate(router for _, router in self._routers if router in present))",
        OF_STAGE,
    ),
    Mutant(
        "experts in stages: a last stage without routers shows no logits of any",
        "trainer/modeling/forward.py",
        'arguments["output_router_logits"] = self._has_routers',
        'arguments["output_router_logits"] = True',
        OF_STAGE,
    ),
    Mutant(
        "experts in stages: a layer's part in the balance is that in the whole model",
        OF_STAGES,
        "loss.router_aux_loss_coef, layers)",
        "loss.router_aux_loss_coef)",
        TRAINED_ALIKE,
    ),
    Mutant(
        "experts in stages: every stage balances its layers",
        "trainer/modeling/pipeline.py",
        "        if balance is not None and row.routing is not None:\n",
        "        if balance is not None and row.routing is not None and self._stage.is_last:\n",
        TRAINED_ALIKE,
    ),
    Mutant(
        "experts in stages: metrics are of the experts of all stages",
        OF_STAGES,
        "return joined_stages(lm.stage.pipeline.peers.gather_objects(on_host))",
        "return on_host",
        TRAINED_ALIKE,
    ),
    Mutant(
        "experts in stages: replayed choices are counted over all stages",
        "trainer/step/learner.py",
        "replay_metrics(self._parallel.sum_over_stages(counts))",
        "replay_metrics(counts)",
        TRAINED_ALIKE,
    ),
    Mutant(
        "experts in stages: the balance counts each row once",
        OF_STAGES,
        "routings if len(known) == num_rows else [own.detached(), *routings]",
        "[own.detached(), *routings]",
        TWO_PASSES,
    ),
    Mutant(
        "experts in stages: a stage may have dense layers alone",
        "trainer/modeling/expert_parallel.py",
        "(parallel.pipeline is None or not _has_plan(model))",
        "True",
        f"{TEST_EXPERTS}::test_stages_without_experts_are_none_of_a_model_without",
    ),
)
