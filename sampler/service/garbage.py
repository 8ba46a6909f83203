"""How often this process looks for cycles of garbage: seldom, since an open session of tools holds hundreds of objects."""

import gc

# CPython's 700 has thousands of living objects walked through every few calls. Cycles are still found: after so many more
# allocations than deallocations.
THRESHOLD = 10_000


def collect_seldom() -> None:
    """Call it once, when everything is imported: modules live as long as the process, and are not walked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD, 10, 10)
