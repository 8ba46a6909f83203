"""Protections of images: placeholders stand for images alone, and settings of a processor are not left out in silence."""

from tests.mutant_rows.mutant import Mutant

PLACEHOLDERS = "tests/shared/test_placeholders.py"
SETTINGS = "tests/shared/test_image_settings.py"

MUTANTS = (
    Mutant(
        "ids with placeholders that no image accounts for are refused",
        "shared/images/placeholders.py",
        "    if len(places) != expected:\n",
        "    if len(places) < expected:\n",
        f"{PLACEHOLDERS}::test_placeholders_that_no_image_accounts_for_are_refused",
    ),
    Mutant(
        "the placeholders of an image are in a row",
        "shared/images/placeholders.py",
        "    if places[-1] - places[0] != len(places) - 1:\n",
        "    if False:\n",
        f"{PLACEHOLDERS}::test_placeholders_that_are_not_in_a_row_are_refused",
    ),
    Mutant(
        "placeholders of videos are refused",
        "shared/images/placeholders.py",
        "    if family.video_id is not None and (ids_N == family.video_id).any():\n",
        "    if False:\n",
        f"{PLACEHOLDERS}::test_placeholders_of_videos_are_refused",
    ),
    Mutant(
        "an image token for each image",
        "shared/images/placeholders.py",
        "    if len(places) != len(sizes):\n",
        "    if len(places) < len(sizes):\n",
        f"{PLACEHOLDERS}::test_an_unmarked_image_token_is_refused",
    ),
    Mutant(
        "a marked image token is text",
        "shared/images/placeholders.py",
        'if plain is None or found["plain_text"] is None]',
        "]",
        f"{PLACEHOLDERS}::test_an_image_token_that_a_user_typed_is_encoded_as_text",
    ),
    Mutant(
        "a typed token of an image is refused",
        "shared/images/placeholders.py",
        "    if typed:\n",
        "    if False:\n",
        f"{PLACEHOLDERS}::test_texts_with_tokens_of_images_are_refused_with_their_place",
    ),
    Mutant(
        "a setting that is not known is refused",
        "shared/images/families/model_files.py",
        "        if rest:\n",
        "        if False:\n",
        f"{SETTINGS}::test_an_unknown_setting_is_refused_by_name",
    ),
    Mutant(
        "a vision model of another family is refused",
        "shared/images/families/known.py",
        "    if any(config.get(key) is not None for key in _VISION_KEYS):\n",
        "    if False:\n",
        f"{SETTINGS}::test_a_vision_model_of_another_family_is_refused_with_the_known_ones",
    ),
    Mutant(
        "the placeholder's id is the model's",
        "shared/images/families/model_files.py",
        "        if actual is None or expected != actual:\n",
        "        if actual is None:\n",
        f"{SETTINGS}::test_files_that_contradict_each_other_are_refused",
    ),
    Mutant(
        "a tile has as many placeholders as features",
        "shared/images/families/idefics3.py",
        "    if features != tile_features:\n",
        "    if False:\n",
        f"{SETTINGS}::test_files_that_contradict_each_other_are_refused",
    ),
    Mutant(
        "no tile is all zeros",
        "shared/images/families/idefics3.py",
        "        if (pixels.table_C256 == 0).any(axis=1).all():\n",
        "        if False:\n",
        f"{SETTINGS}::test_a_setting_with_a_wrong_value_is_refused",
    ),
    Mutant(
        "patches are the vision tower's",
        "shared/images/families/qwen_vl.py",
        "            if of_model != value:\n",
        "            if False:\n",
        f"{SETTINGS}::test_files_that_contradict_each_other_are_refused",
    ),
    Mutant(
        "extreme aspect ratios are refused",
        "shared/images/families/qwen_vl.py",
        "        if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:\n",
        "        if False:\n",
        "tests/shared/test_image_families.py::test_an_aspect_ratio_above_200_is_refused_as_by_transformers",
    ),
)
