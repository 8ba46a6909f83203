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
        "if placeholders_of(self.template.images).isdisjoint(reply.body_ids):",
        "if True:",
        f"{PROMPTS}::test_a_reply_with_the_token_of_images_ends_its_thread_and_is_text_elsewhere",
    ),
    Mutant(
        "episode images: a token of videos ends an episode too",
        "sampler/core/rendering/images.py",
        "ids = (self.family.placeholder_id, self.family.video_id)",
        "ids = (self.family.placeholder_id, None)",
        f"{EPISODES}::test_a_reply_with_the_token_of_images_ends_the_episode_as_the_models_act",
    ),
    Mutant(
        "episode images: nothing is asked behind a token of images",
        "sampler/core/episode/sampler.py",
        "prompt = None if view.is_closed else",
        "prompt = None if False else",
        f"{EPISODES}::test_no_request_follows_a_reply_with_the_token_of_images",
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
        f"{FILES}::test_a_references_sizes_are_replaced_by_those_of_the_store",
    ),
    Mutant(
        "episode images: engines are sent pixels that every decoder shows alike",
        STORED,
        "data if _is_plain(data, kind) else png(picture.rgb_HW3.tobytes(), width, height, 3, compression=1)",
        "data",
        f"{FILES}::test_an_orientation_is_applied_before_an_engine_sees_the_image",
    ),
    Mutant(
        "episode images: files held for engines are bounded",
        "shared/bounded_cache.py",
        "while self.total > self._most and len(self._values) > 1:",
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
        f"{RESULTS}::test_an_image_block_without_an_image_is_a_line_with_the_reason",
    ),
    Mutant(
        "episode images: a model whose images cannot be used is named before anything runs",
        "scripts/tandem/launch/model_check.py",
        "    if sees(folder):",
        "    if False:",
        "tests/sampler/test_model_check.py::test_a_vision_model_whose_images_cannot_be_used_has_a_row_that_failed",
    ),
)
