"""Garbage is looked for seldom in a sampler's process, and cycles are still collected."""

import subprocess
import sys

CHILD = """
import gc, weakref
from sampler.core.service.garbage import THRESHOLD, collect_seldom

class Node:
    pass

looks = [0]
gc.callbacks.append(lambda phase, info: looks.__setitem__(0, looks[0] + (phase == "stop")))

def most_alive(number):
    alive, most = weakref.WeakSet(), 0
    for n in range(number):
        node = Node()
        node.itself = node
        if n % 100 == 0:
            alive.add(node)
            most = max(most, len(alive))
    return most * 100

collect_seldom()
assert gc.get_freeze_count() > 1000, "modules are not walked through"
looks[0] = 0
most = most_alive(30 * THRESHOLD)
assert most <= 2 * THRESHOLD, most
assert 10 <= looks[0] <= 70, looks
"""


def test_cycles_of_garbage_are_collected_and_their_number_is_bounded() -> None:
    subprocess.run([sys.executable, "-c", CHILD], check=True, timeout=120)
