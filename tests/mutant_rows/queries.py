"""Protections of the store's queries: none reads more of a long run than of a short one."""

from tests.mutant_rows.mutant import Mutant

QUERIED = "tests/shared/test_looks.py"
GROWN_RUN = "tests/shared/test_verbs_on_a_grown_run.py"

MUTANTS = (
    Mutant(
        "turns are found by an index",
        "shared/store/records.py",
        '        await add_index(self._dispatches, [("record", 1), ("turn", 1)], name="record")\n',
        "",
        f"{GROWN_RUN}::test_no_read_reads_documents_of_another_policy",
    ),
    Mutant(
        "documents are counted by an index alone",
        "shared/store/counting.py",
        "collection.count_documents(one, **limit, **by)",
        'collection.count_documents({**one, "_id": {"$ne": 0}}, **limit, **by)',
        f"{QUERIED}::test_documents_are_counted_without_being_read",
    ),
    Mutant(
        "status reads the newest documents of a reason alone",
        "shared/store/questions.py",
        "    if newest is None:\n",
        "    if True:\n",
        f"{QUERIED}::test_a_polling_query_reads_no_more_of_a_run_that_is_ten_times_as_long",
    ),
    Mutant(
        "versions whose files are deleted are not read at every step",
        "shared/store/policies.py",
        '"policy": policy, "pruned": False}',
        '"policy": policy}',
        f"{QUERIED}::test_a_polling_query_reads_no_more_of_a_run_that_is_ten_times_as_long",
    ),
    Mutant(
        "ready groups are counted along the index of the stream",
        "shared/store/record_data.py",
        'await with_index("stream", lambda by: self._data.aggregate(stages, **by))',
        'await self._data.aggregate(stages, hint="epochs")',
        f"{QUERIED}::test_with_much_data_waiting_no_more_than_the_bound_is_counted",
    ),
)
