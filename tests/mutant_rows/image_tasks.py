"""Protections of images in task files and in copies of runs."""

from tests.mutant_rows.mutant import Mutant

TASKS = "tests/shared/test_task_images.py"
TABLES = "tests/shared/test_table_images.py"
COPIES = "tests/shared/test_image_copies.py"
WRONG = f"{TASKS}::test_a_wrong_image_is_named_by_line_and_field_and_nothing_of_its_file_is_stored"

MUTANTS = (
    Mutant(
        "task images: every image is decoded before the first write",
        "shared/tasks/files.py",
        "            conflicts += errors\n",
        "",
        f"{TASKS}::test_nothing_is_stored_where_an_image_of_a_later_batch_is_wrong",
    ),
    Mutant(
        "task images: as many places as images",
        "shared/tasks/query_blocks.py",
        "    if len(images) != len(parts) - 1:\n",
        "    if False:\n",
        WRONG,
    ),
    Mutant(
        "task images: as many empty blocks as images",
        "shared/tasks/query_blocks.py",
        "    if len(empty) != len(images):\n",
        "    if False:\n",
        WRONG,
    ),
    Mutant(
        "task images: a line names no image of the store",
        "shared/tasks/lines.py",
        'NOT_OF_FILES = ("fork", "query_blocks")',
        'NOT_OF_FILES = ("fork",)',
        WRONG,
    ),
    Mutant(
        "task images: the number of a question's images is bounded",
        "shared/tasks/task_images.py",
        "            self._bounds().check_count(sum(one.is_image for one in line.blocks), '\"query\"')\n",
        "            pass\n",
        WRONG,
    ),
    Mutant(
        "task images: another image is a conflict",
        "shared/tasks/files.py",
        '            different.append("query_blocks")\n',
        "            pass\n",
        f"{TASKS}::test_a_stored_question_with_another_image_is_a_conflict",
    ),
    Mutant(
        "task images: a batch ends with its images",
        "shared/tasks/task_images.py",
        " or num_images >= IMAGES_AT_ONCE:",
        ":",
        f"{TASKS}::test_a_thousand_images_are_imported_in_small_batches_with_progress",
    ),
    Mutant(
        "task images: an image is stored once in an import",
        "shared/tasks/task_images.py",
        "                self._stored.add(files[-1].sha256)\n",
        "",
        f"{TASKS}::test_a_thousand_images_are_imported_in_small_batches_with_progress",
    ),
    Mutant(
        "task images: a file that changed is decoded again",
        "shared/tasks/task_images.py",
        "        block = self._by_digest.get(sha256)\n",
        "        block = next(iter(self._by_digest.values()), None)\n",
        f"{TASKS}::test_a_file_that_changes_while_it_is_imported_is_stored_as_it_is_then",
    ),
    Mutant(
        "task images: hosts are those that were named",
        "shared/tasks/task_images.py",
        "        return ImageBounds(image_hosts=self._hosts)\n",
        '        return ImageBounds(image_hosts=(*self._hosts, "127.0.0.1"))\n',
        f"{TASKS}::test_an_image_of_an_allowed_host_is_fetched",
    ),
    Mutant(
        "task images: a model of text refuses them",
        "shared/tasks/checks.py",
        "            yield from self._image_problems\n",
        "            yield from ()\n",
        f"{TASKS}::test_a_model_of_text_refuses_tasks_with_images_before_anything_starts",
    ),
    Mutant(
        "task images: a launch looks for the files",
        "shared/tasks/files.py",
        "        problems += [error for line in batch for error in missing_files(path, line)]\n",
        "",
        f"{TASKS}::test_a_missing_file_is_an_error_before_anything_starts",
    ),
    Mutant(
        "tables with images: no file is left after an error",
        "shared/tasks/table_images.py",
        "            path.unlink(missing_ok=True)\n",
        "            pass\n",
        f"{TABLES}::test_an_error_of_an_image_names_its_row_and_removes_the_files",
    ),
    Mutant(
        "tables with images: files of earlier conversions stay",
        "shared/tasks/table_images.py",
        "        if not path.exists():\n",
        "        if True:\n",
        f"{TABLES}::test_files_of_an_earlier_conversion_survive_one_that_fails",
    ),
    Mutant(
        "tables with images: every image is decoded",
        "shared/tasks/tables.py",
        "            check_images(temporary, checked_lines(temporary))\n",
        "            list(checked_lines(temporary))\n",
        f"{TABLES}::test_an_error_of_an_image_names_its_row_and_removes_the_files",
    ),
    Mutant(
        "copies: images come with the groups that name them",
        "shared/store/copying.py",
        "    await copy_images(source, target, images_of(copied))\n",
        "",
        f"{COPIES}::test_images_are_copied_with_the_groups_that_name_them",
    ),
    Mutant(
        "copies: images of a data file come before what names them",
        "shared/store/copying.py",
        "            yield [image]\n",
        "            pass\n",
        f"{COPIES}::test_a_data_file_has_each_image_once_before_what_names_it",
    ),
    Mutant(
        "copies: a data file has each image once",
        "shared/store/copying.py",
        "        images |= new\n",
        "",
        f"{COPIES}::test_a_data_file_has_each_image_once_before_what_names_it",
    ),
    Mutant(
        "copies: images of a data file are read in small batches",
        "shared/store/data_file.py",
        " or num_bytes > WRITES_AT_ONCE_BYTES:",
        ":",
        f"{COPIES}::test_a_data_file_has_each_image_once_before_what_names_it",
    ),
    Mutant(
        "copies: an archive is restored in small batches",
        "shared/store/archive.py",
        " or num_bytes > WRITES_AT_ONCE_BYTES:",
        ":",
        f"{COPIES}::test_an_archive_has_all_images_and_is_restored_in_small_batches",
    ),
    Mutant(
        "exports: conversations have their images",
        "scripts/tandem/viewer/exports.py",
        "                rows = [await with_data_urls(request.store, row) for row in rows]\n",
        "                pass\n",
        "tests/tandem/viewer/test_exported_images.py::test_an_exported_conversation_has_its_images_and_is_read_for_training",
    ),
    Mutant(
        "copies: images come with groups that are settled anew",
        "scripts/tandem/what_if/resettle.py",
        "    await copy_images(source, target, images_of(documents))\n",
        "",
        "tests/tandem/test_resettle.py::test_images_come_with_the_groups_that_name_them",
    ),
)
