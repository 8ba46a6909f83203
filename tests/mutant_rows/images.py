"""Protections of images: what a file may cost, where it may come from, and what the store has of it."""

from tests.mutant_rows.mutant import Mutant

DECODING = "tests/shared/test_image_decoding.py"
HOSTILE = "tests/shared/test_hostile_images.py"
SOURCES = "tests/shared/test_image_sources.py"
STORED = "tests/shared/test_stored_images.py"
WORKER = "shared/images/worker.py"

MUTANTS = (
    Mutant(
        "images: bytes of a file",
        "shared/images/decode.py",
        "if len(data) > bounds.max_bytes:",
        "if False:",
        f"{DECODING}::test_bytes_and_pixels_and_count_are_bounded_and_the_message_says_so",
    ),
    Mutant(
        "images: pixels are read from the header before anything is decompressed",
        "shared/images/decode.py",
        "if header.width * header.height > bounds.max_pixels:",
        "if False:",
        f"{HOSTILE}::test_a_bomb_is_refused_within_the_decoders_memory",
    ),
    Mutant(
        "images: an image has pixels",
        "shared/images/header.py",
        "if width < 1 or height < 1:",
        "if False:",
        f"{HOSTILE}::test_an_image_without_pixels_is_refused",
    ),
    Mutant(
        "images: the message on a WebP that is cut off gives both lengths",
        "shared/images/header.py",
        "if riff_bytes + 8 > len(data):",
        "if False:",
        f"{HOSTILE}::test_the_message_on_a_webp_that_is_cut_off_gives_both_lengths",
    ),
    Mutant(
        "images: memory of the decoder",
        WORKER,
        "    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, resource.RLIM_INFINITY))\n",
        "",
        f"{DECODING}::test_a_decoder_that_needs_more_memory_than_its_bound_refuses_the_image_and_goes_on",
    ),
    Mutant(
        "images: processor time of the decoder",
        WORKER,
        "int(used.ru_utime + used.ru_stime + cpu_s) + 1",
        "resource.RLIM_INFINITY",
        f"{DECODING}::test_endless_work_ends_with_its_processor_time",
    ),
    Mutant(
        "images: the decoder writes no file",
        WORKER,
        "        (resource.RLIMIT_FSIZE, 0),\n",
        "",
        f"{DECODING}::test_the_decoders_limits_are_those_of_the_kernel",
    ),
    Mutant(
        "images: an error of Pillow is the file's, and the decoder goes on",
        WORKER,
        "        except Exception as exc:  # noqa: BLE001 - decoders raise",
        "        except OSError as exc:  # decoders raise",
        f"{HOSTILE}::test_a_bomb_is_refused_within_the_decoders_memory",
    ),
    Mutant(
        "images: what is transparent is white",
        WORKER,
        "elif image.has_transparency_data:",
        "elif False:",
        f"{DECODING}::test_what_is_transparent_is_white_and_sixteen_bits_keep_their_high_byte",
    ),
    Mutant(
        "images: a decoder that stalled is ended",
        "shared/images/process.py",
        "            self.close()\n            raise\n        raise ImageRefused",
        "            raise\n        raise ImageRefused",
        f"{DECODING}::test_a_decoder_that_stalls_is_ended_and_its_late_reply_is_no_other_images",
    ),
    Mutant(
        "images: a file whose decoder ended is tried once more",
        "shared/images/decode.py",
        "TRIES = 2",
        "TRIES = 1",
        f"{DECODING}::test_a_file_that_ends_the_decoder_twice_is_refused",
    ),
    Mutant(
        "images: a fork starts decoders of its own",
        "shared/images/decode.py",
        "existing = _OF_PROCESS.get(os.getpid())",
        "existing = next(iter(_OF_PROCESS.values()), None)",
        f"{DECODING}::test_a_fork_starts_decoders_of_its_own",
    ),
    Mutant(
        "images: a path stays below the folder of the file that names it",
        "shared/images/source.py",
        "if not inside and not bounds.absolute_paths:",
        "if False:",
        f"{SOURCES}::test_a_path_leads_out_of_its_folder_only_where_the_caller_allows_it",
    ),
    Mutant(
        "images: a link counts as what it leads to",
        "shared/images/source.py",
        "path = (home / name).resolve()",
        "path = Path(os.path.normpath(home / name))",
        f"{SOURCES}::test_a_path_leads_out_of_its_folder_only_where_the_caller_allows_it",
    ),
    Mutant(
        "images: only regular files are read",
        "shared/images/source.py",
        "if not stat.S_ISREG(status.st_mode):",
        "if False:",
        f"{SOURCES}::test_what_is_no_readable_file_is_refused_and_not_waited_for",
    ),
    Mutant(
        "images: only hosts that the caller names are reached",
        "shared/images/fetched.py",
        "if host not in bounds.image_hosts:",
        "if False:",
        f"{SOURCES}::test_an_image_of_the_web_comes_only_from_hosts_that_the_caller_names",
    ),
    Mutant(
        "images: no redirection is followed",
        "shared/images/fetched.py",
        "opener_for(url, _NoRedirect())",
        "opener_for(url)",
        f"{SOURCES}::test_a_redirection_a_status_a_cut_answer_and_a_large_one_are_refused",
    ),
    Mutant(
        "images: an answer that is cut off is no image",
        "shared/images/fetched.py",
        "int(expected) != len(data)",
        "False",
        f"{SOURCES}::test_a_redirection_a_status_a_cut_answer_and_a_large_one_are_refused",
    ),
    Mutant(
        "images: chunks are written before the image that has them",
        "shared/store/images.py",
        "        await _insert(self._chunks, [chunk for file in missing for chunk in chunks_of(file)])\n"
        "        await _insert(self._images, [StoredImage.of(file) for file in missing])\n",
        "        await _insert(self._images, [StoredImage.of(file) for file in missing])\n"
        "        await _insert(self._chunks, [chunk for file in missing for chunk in chunks_of(file)])\n",
        f"{STORED}::test_an_image_whose_writer_was_killed_between_any_two_commands_is_whole_or_not_there",
    ),
    Mutant(
        "images: what is read has its digest",
        "shared/store/images.py",
        "        if actual != sha256:\n",
        "        if False:\n",
        f"{STORED}::test_bytes_with_another_digest_are_neither_stored_nor_returned",
    ),
    Mutant(
        "images: what is kept has its digest",
        "shared/store/images.py",
        "if actual != file.sha256:",
        "if False:",
        f"{STORED}::test_bytes_with_another_digest_are_neither_stored_nor_returned",
    ),
    Mutant(
        "images: a command of the store has a bounded size",
        "shared/store/images.py",
        "WRITTEN_AT_ONCE_BYTES = 16_000_000",
        "WRITTEN_AT_ONCE_BYTES = 1 << 60",
        f"{STORED}::test_an_image_whose_writer_was_killed_between_any_two_commands_is_whole_or_not_there",
    ),
)
