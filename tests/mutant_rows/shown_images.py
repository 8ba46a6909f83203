"""Protections of the viewer's images: which files are served, and what a page with them asks."""

from tests.mutant_rows.mutant import Mutant

PAGES = "tests/tandem/viewer/test_viewer_images.py"
FILES = "tests/tandem/viewer/test_image_addresses.py"
SERVED = "scripts/tandem/viewer/images.py"
KNOWN = "shared/episodes/images.py"

MUTANTS = (
    Mutant(
        "shown images: only a digest names a file",
        SERVED,
        "if not is_digest(sha256):",
        "if False:",
        f"{FILES}::test_a_name_of_no_image_is_status_404",
    ),
    Mutant(
        "shown images: the type of a file is that of its bytes, and no other format is served",
        SERVED,
        'media_type = MEDIA_TYPES[header_of(data, f"image {sha256}").format]',
        'media_type = "image/png"',
        f"{FILES}::test_what_is_none_of_the_five_formats_is_not_served_even_if_it_is_stored",
    ),
    Mutant(
        "shown images: a browser guesses no type",
        "scripts/tandem/viewer/guard.py",
        '"x-content-type-options": "nosniff",',
        "",
        f"{FILES}::test_a_file_has_the_type_of_its_bytes_and_is_cached_by_the_browser",
    ),
    Mutant(
        "shown images: a page without images asks for none",
        SERVED,
        "    if not digests:\n",
        "    if False:\n",
        f"{PAGES}::test_a_page_reads_names_of_images_alone_and_one_without_images_asks_for_none",
    ),
    Mutant(
        "shown images: a page reads no file",
        "shared/store/views/rollouts.py",
        '{"_id": {"$in": list(digests)}}, {"_id": 1})',
        '{"_id": {"$in": list(digests)}}, {"_id": 1, "width": 1})',
        f"{PAGES}::test_a_page_reads_names_of_images_alone_and_one_without_images_asks_for_none",
    ),
    Mutant(
        "shown images: one that is gone is a sentence",
        SERVED,
        "missing=frozenset(digests) - present",
        "missing=frozenset()",
        f"{PAGES}::test_a_missing_image_is_a_sentence_in_its_place",
    ),
    Mutant(
        "shown images: a reference without a digest is text",
        KNOWN,
        "if is_digest(sha256):\n            return self.image(sha256)",
        "if sha256:\n            return self.image(sha256)",
        f"{PAGES}::test_a_reference_that_is_none_is_shown_as_text",
    ),
    Mutant(
        "shown images: places that the ids contradict are left out",
        KNOWN,
        "if not behind <= image.first < len(ids_N) or image.count < 1:",
        "if False:",
        f"{PAGES}::test_a_reference_that_is_none_is_shown_as_text",
    ),
    Mutant(
        "shown images: rollouts part at an image of other bytes",
        KNOWN,
        "tokens[place] = (int(own[place - turn.shared]), image.sha256)",
        "tokens[place] = int(own[place - turn.shared])",
        f"{PAGES}::test_two_rollouts_part_where_an_image_differs_though_its_tokens_are_equal",
    ),
    Mutant(
        "shown images: a thumbnail is bounded",
        SERVED,
        "most_width / image.width, most_height / image.height, max",
        "1.0, max",
        f"{PAGES}::test_a_thumbnail_has_bounded_sides",
    ),
    Mutant(
        "shown images: pictures are loaded by need",
        "scripts/tandem/viewer/templates/episode_parts.html",
        'loading="lazy" decoding="async"{% if size %}',
        'decoding="async"{% if size %}',
        f"{PAGES}::test_a_long_episode_is_a_small_page_whose_pictures_are_loaded_by_need",
    ),
    Mutant(
        "shown images: a picture that is not loaded has its place",
        "scripts/tandem/viewer/templates/episode_parts.html",
        '{% if size %} width="{{ size[0] }}" height="{{ size[1] }}"{% else %}',
        "{% if size %}{% else %}",
        "tests/tandem/viewer/test_images_in_chromium.py::test_of_many_screenshots_those_near_the_window_are_loaded",
    ),
)
