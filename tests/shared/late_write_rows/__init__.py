"""The rows of tests/shared/test_late_writes.py, a module per area."""

from tests.shared.late_write_rows import of_records, of_runs, of_tasks
from tests.shared.late_write_rows.rows import ROWS

__all__ = ["ROWS", "of_records", "of_runs", "of_tasks"]
