"""Protections of router replay: whose experts a token gets, and which are refused."""

from tests.mutant_rows.mutant import Mutant

REPLAY = "tests/trainer/test_router_replay.py"
STORED = "tests/shared/test_routed_experts.py"

MUTANTS = (
    Mutant(
        "router replay: a token without a known choice keeps its router's",
        "trainer/modeling/router_replay.py",
        "torch.where(self.given_N[:, None], self.experts_NK, result.indices)",
        "self.experts_NK",
        f"{REPLAY}::test_other_tokens_than_those_with_experts_keep_the_choice_of_their_router",
    ),
    Mutant(
        "router replay: merging does not change what is replayed",
        "trainer/trees/tree.py",
        "trie_nodes = node_of_token if merging is Merging.TREE else insert_all(records, included)[1]",
        "trie_nodes = node_of_token",
        f"{REPLAY}::test_replayed_experts_give_the_gradient_of_the_formula_whatever_merging_rows_and_passes",
    ),
    Mutant(
        "router replay: a row without experts is not computed with those of the row before",
        "trainer/modeling/router_replay.py",
        "self._row, self._experts, self._here = row, row.experts, here",
        "self._row, self._experts, self._here = row, row.experts or self._experts, here",
        f"{REPLAY}::test_where_the_engine_chose_as_the_model_does_nothing_changes_bit_for_bit",
    ),
    Mutant(
        "router replay: the reference model chooses by itself",
        "trainer/step/accumulate.py",
        "self.reference, row.without_experts(), chunk",
        "self.reference, row, chunk",
        f"{REPLAY}::test_the_reference_model_chooses_by_itself",
    ),
    Mutant(
        "router replay: an expert beyond the model's is refused before a step",
        "trainer/trees/experts.py",
        "if array.max() >= routers.num_experts:",
        "if array.max() > routers.num_experts:",
        f"{REPLAY}::test_experts_that_are_not_the_models_are_refused_with_the_record",
    ),
    Mutant(
        "router replay: the first request says a token's experts",
        "shared/tokens/expert_span.py",
        "new = ~given_N[nodes]",
        "new = given_N[nodes] | True",
        f"{STORED}::test_a_token_has_the_experts_of_the_first_request_that_computed_it",
    ),
    Mutant(
        "router replay: experts are bound to the tokens that their request adds",
        "shared/tokens/flatten.py",
        "if not (-1 if num_shared else 0) <= first < stop <= num_new:",
        "if not first < stop:",
        f"{STORED}::test_experts_of_tokens_that_a_request_does_not_add_are_refused",
    ),
    Mutant(
        "router replay: other experts are another tree",
        "shared/tokens/flatten.py",
        "    for span in tree.experts:\n",
        "    for span in ():\n",
        f"{STORED}::test_other_experts_are_another_tree_and_are_refused",
    ),
    Mutant(
        "router replay: bytes of another digest are refused",
        "shared/documents/routed_experts.py",
        " or hashlib.sha256(data).hexdigest() != described.sha256",
        "",
        f"{STORED}::test_a_missing_chunk_and_other_bytes_are_refused",
    ),
)
