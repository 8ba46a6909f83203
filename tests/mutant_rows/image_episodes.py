"""Protections of images in episodes."""

from tests.mutant_rows.mutant import Mutant

PROMPTS = "tests/sampler/test_image_prompts.py"
FILES = "tests/sampler/test_image_files.py"
RESULTS = "tests/sampler/test_image_results.py"
EPISODES = "tests/sampler/test_image_episodes.py"
RENDERED = "sampler/core/rendering/images.py"
STORED = "sampler/core/episode/images.py"

MUTANTS = (
    Mutant(
        "episode images: a typed image token is text",
        RENDERED,
        "if found[1] is not None]",
        "]",
        f"{PROMPTS}::test_a_typed_image_token_is_text_where_it_comes_from_outside_and_an_error_in_the_instructions",
    ),
    Mutant(
        "episode images: as many image tokens as images",
        RENDERED,
        "if len(places) != len(images):",
        "if False:",
        f"{PROMPTS}::test_a_typed_image_token_is_text_where_it_comes_from_outside_and_an_error_in_the_instructions",
    ),
    Mutant(
        "episode images: other pictures of the same size share nothing",
        "sampler/core/rendering/view.py",
        "self._tokens.recorded.parent_of(self.context.compared_ids,",
        "self._tokens.recorded.parent_of(self.context.ids,",
        f"{PROMPTS}::test_threads_share_what_is_before_other_pictures_of_the_same_size",
    ),
    Mutant(
        "episode images: a rewritten history branches at another picture",
        "sampler/core/rendering/context.py",
        "shared = common_length(old, self.compared_ids)",
        "shared = common_length(old, ids)",
        f"{PROMPTS}::test_a_history_with_another_picture_begins_a_branch_at_it",
    ),
    Mutant(
        "episode images: a reply with the token of images is text in other histories",
        "sampler/core/rendering/context.py",
        "if placeholder_of(self.template.images) not in reply.body_ids:",
        "if True:",
        f"{PROMPTS}::test_a_reply_with_the_token_of_images_ends_its_thread_and_is_text_elsewhere",
    ),
    Mutant(
        "episode images: nothing is asked behind a token of images",
        "sampler/core/episode/sampler.py",
        "prompt = None if view.is_closed else",
        "prompt = None if False else",
        f"{EPISODES}::test_nothing_is_asked_behind_a_token_of_images",
    ),
    Mutant(
        "episode images: messages read no files",
        "shared/images/source.py",
        'if name == "path" and folder is None:',
        "if False:",
        f"{FILES}::test_what_is_no_image_is_an_error_that_names_message_and_block",
    ),
    Mutant(
        "episode images: sizes of a reference are the store's",
        STORED,
        'return await self._known(str(block["sha256"]), where)',
        "return dict(block)",
        f"{FILES}::test_a_reference_is_that_of_the_store_whatever_its_sizes_were_said_to_be",
    ),
    Mutant(
        "episode images: engines are sent pixels that every decoder shows alike",
        STORED,
        "data if _is_plain(data, kind) else png_of(picture.rgb_HW3)",
        "data",
        f"{FILES}::test_an_orientation_is_applied_before_an_engine_sees_the_image",
    ),
    Mutant(
        "episode images: files held for engines are bounded",
        STORED,
        "while self._total > self._most and len(self._values) > 1:",
        "while False:",
        f"{FILES}::test_memory_is_bounded",
    ),
    Mutant(
        "episode images: pictures of one answer are bounded",
        "sampler/core/tools/image_results.py",
        "if image is None or shown == MOST_SHOWN:",
        "if image is None:",
        f"{RESULTS}::test_more_pictures_than_are_shown_are_lines",
    ),
    Mutant(
        "episode images: a picture that cannot be read is a line",
        "sampler/core/tools/image_results.py",
        "except (DataError, binascii.Error) as exc:",
        "except ZeroDivisionError as exc:",
        f"{RESULTS}::test_what_is_called_an_image_and_is_none_is_a_line_that_says_why",
    ),
    Mutant(
        "episode images: a model whose images cannot be used is named before anything runs",
        "scripts/tandem/launch/model_check.py",
        "    if sees(folder):",
        "    if False:",
        "tests/sampler/test_model_check.py::test_a_vision_model_whose_images_cannot_be_used_has_a_row_that_failed",
    ),
)
