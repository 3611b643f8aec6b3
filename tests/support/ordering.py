"""The order of the tests in a run of several processes: long tests begin early.

pytest-xdist cuts the tests into equal parts, one for each process. A process that has finished its part steals from the
end of another one.
"""

from collections import defaultdict
from collections.abc import Sequence

import pytest


def begin_with_long_tests(tests: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests so that two of three processes begin with tests that are marked as slow.

    The others run short tests meanwhile: tests wait longer than they expect if each process computes. Tests of a module
    that is marked share fixtures, and stay together.
    """
    groups = defaultdict[str, list[pytest.Item]](list)
    short = []
    for test in tests:
        marked = next((node for node, _ in test.iter_markers_with_node("slow")), None)
        if marked is None:
            short.append(test)
        else:
            groups[marked.nodeid].append(test)
    busy = max(1, processes * 2 // 3)
    found: list[pytest.Item] = []
    for number in range(processes):
        hand = list(groups.values())[number::busy] if number < busy else []
        # Each begins elsewhere: the fault runs follow each other, and would run at the same time.
        begin = len(hand) * number // busy
        long = [test for group in hand[begin:] + hand[:begin] for test in group]
        size = (len(tests) - len(found)) // (processes - number)
        count = max(0, size - len(long))
        found += [*long, *short[:count]]
        del short[:count]
    assert len(found + short) == len(tests)
    return found + short
