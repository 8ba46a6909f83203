"""Protections of weights that are pulled in chunks."""

from tests.mutant_rows.mutant import Mutant

PULLING = "tests/shared/test_pulling.py"
PEERS = "tests/trainer/test_publish_to_peers.py"

MUTANTS = (
    Mutant(
        "pulled weights: a chunk with another digest is not written",
        "shared/weights/pulling/chunked_file.py",
        "        if digest_of(data) != self.chunking.digests[number]:\n",
        "        if False:\n",
        f"{PULLING}::test_damaged_chunks_of_one_source_come_from_another",
    ),
    Mutant(
        "pulled weights: what was left counts only where it is right",
        "shared/weights/pulling/chunked_file.py",
        "held[number] = digest_of(data) == chunking.digests[number]",
        "held[number] = True",
        f"{PULLING}::test_chunks_of_an_interrupted_attempt_are_used_if_their_digests_match",
    ),
    Mutant(
        "pulled weights: the whole file has the announced digest",
        "shared/weights/pulling/client.py",
        "    if actual != sha256:\n",
        "    if False:\n",
        f"{PULLING}::test_a_source_with_digests_of_another_file_is_an_error",
    ),
    Mutant(
        "pulled weights: a slow source's chunk is requested from another",
        "shared/weights/pulling/client.py",
        "is_free = not busy or (",
        "is_free = not busy or (False and ",
        f"{PULLING}::test_a_hanging_source_delays_nothing",
    ),
    Mutant(
        "pulled weights: a file is served before it is announced",
        "trainer/publishing/publish.py",
        "        self._serve(written)\n",
        "        self._serve()\n",
        f"{PEERS}::test_what_is_pulled_is_whole",
    ),
    Mutant(
        "pulled weights: what a route needs is not deleted",
        "sampler/engine/keeper/pulling.py",
        "if not any(path.is_relative_to(folder) for path in needed):",
        "if True:",
        f"{PEERS}::test_what_is_pulled_is_whole",
    ),
    Mutant(
        "pulled weights: a peer without the file is asked again",
        "shared/weights/pulling/client.py",
        "                except NotHere as exc:\n",
        "                except NotYet as exc:\n",
        f"{PULLING}::test_a_peer_that_begins_later_is_used",
    ),
    Mutant(
        "pulled weights: pulling ends where no chunk comes",
        "shared/weights/pulling/client.py",
        "is_quiet = time.monotonic() > self._last_chunk_at + QUIET_S",
        "is_quiet = False",
        f"{PULLING}::test_pulling_ends_where_no_chunk_comes",
    ),
    Mutant(
        "pulled weights: a folder with files of other sizes is not the trainer's disk",
        "sampler/engine/keeper/pulling.py",
        'path.is_file() and path.stat().st_size == entry["bytes"]',
        "path.is_file()",
        "tests/contract/test_keeper_pulling.py::test_by_default_the_disk_is_read_where_it_is_seen_whole",
    ),
    Mutant(
        "pulled weights: by default a keeper pulls where it does not see the trainer's disk",
        "sampler/engine/keeper/pulling.py",
        'return self._config.weight_transport == "peers"\n        return target.source is not None and',
        'return self._config.weight_transport == "peers"\n        return False and',
        "tests/contract/test_keeper_pulling.py::test_an_engine_follows_versions_that_its_machine_has_no_disk_for",
    ),
)
