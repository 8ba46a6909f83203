"""How many slots a process claims with one command, and when it claims again: a command costs the database far more than a slot.

    many free places, or most of them ─▶ claim at once, for half      places become free one by one ─▶ claim every `GATHER_S`

Half of the places, so that processes that start together share the last groups. One command leases slots of one group.
"""

GATHER_S = 0.05  # a place may stay empty for so long; an episode takes seconds
MANY_PLACES = 8  # free places: as many as an ordinary group has slots


def slots_at_once(free: int) -> int:
    """The most slots that a process with `free` places claims with one command; at least 1."""
    return max(1, (free + 1) // 2)


def pause_s(free: int, places: int) -> float:
    """From a claim that leased slots to the next one, for a process that had `free` of its `places` before it."""
    return 0.0 if free > MANY_PLACES or 2 * free > places else GATHER_S
