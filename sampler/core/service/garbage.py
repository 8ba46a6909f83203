"""Makes the cycle collector run rarely: an open tool session holds hundreds of objects."""

import gc

# CPython's default of 700 would walk through thousands of live objects every few calls. Cycles are still found, after this
# many more allocations than deallocations.
THRESHOLD = 10_000


def collect_seldom() -> None:
    """Call once, after all imports: freezes modules, which live as long as the process, so that they are not scanned again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD, 10, 10)
