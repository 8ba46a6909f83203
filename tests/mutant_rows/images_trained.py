"""Images in training: trees, positions, the vision tower, conversations."""

from tests.mutant_rows.mutant import Mutant

EXACT = "tests/trainer/test_vision_exactness.py::test_images_in_a_tree_are_those_of_one_forward_per_sequence"
TWO = "tests/trainer/test_vision_training.py::test_two_processes_train_as_one_and_continue_from_a_checkpoint"

MUTANTS = (
    Mutant(
        "images: files are looked for before the first step",
        "trainer/sft/conversations.py",
        "self._images.require_files(conversation.images, conversation.where)",
        "pass",
        "tests/trainer/test_sft_images.py::test_a_missing_file_is_named_before_the_first_step",
    ),
    Mutant(
        "images: different pictures share no prefix",
        "shared/tokens/image_span.py",
        "key = (span.sha256, span.count, span.grid)",
        'key = ("", span.count, span.grid)',
        "tests/shared/test_image_spans.py::test_a_prefix_is_shared_as_far_as_its_images_are_the_same",
    ),
    Mutant(
        "images: no branch begins inside one",
        "shared/tokens/image_span.py",
        ".any() or branches:\n",
        ".any():\n",
        "tests/shared/test_image_spans.py::test_a_branch_inside_an_image_is_refused",
    ),
    Mutant(
        "images: what follows one stands behind the larger side of its grid",
        "trainer/trees/images.py",
        "= max(grid[1:])",
        "= grid[2]",
        EXACT,
    ),
    Mutant(
        "images: a feature stands at its place in the grid",
        "trainer/trees/images.py",
        "    return before_N + place_3N\n",
        "    return before_N + 0 * place_3N\n",
        EXACT,
    ),
    Mutant(
        "images: a process without an image has gradients for the tower too",
        "trainer/modeling/forward.py",
        "        if unused is not None:\n",
        "        if False:\n",
        TWO,
    ),
    Mutant(
        "images: the tower is frozen unless asked for",
        "trainer/modeling/trainable.py",
        "        if not trainable.train_vision:\n",
        "        if False:\n",
        "tests/trainer/test_vision_training.py::test_the_tower_is_trained_only_with_train_vision",
    ),
    Mutant(
        "images: adapters belong to the language model unless asked for",
        "trainer/modeling/trainable.py",
        "    out = () if vision else ",
        "    out = () if True else ",
        "tests/trainer/test_vision_training.py::test_the_tower_is_trained_only_with_train_vision",
    ),
    Mutant(
        "images: a text with an image's token is refused",
        "trainer/sft/images.py",
        '                    refuse_typed(text, self._family, f"messages[{index}]")\n',
        "                    pass\n",
        "tests/trainer/test_sft_images.py::test_a_wrong_image_is_named_by_line_and_field",
    ),
    Mutant(
        "images: a template that leaves one out is refused",
        "trainer/sft/conversations.py",
        "        if number != expected:\n",
        "        if False:\n",
        "tests/trainer/test_sft_images.py::test_a_template_that_leaves_an_image_out_is_refused",
    ),
)
