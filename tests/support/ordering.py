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
    hands: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for number, group in enumerate(groups.values()):
        hands[number % max(1, processes * 2 // 3)] += group
    found: list[pytest.Item] = []
    for number, hand in enumerate(hands):
        size = (len(tests) - len(found)) // (processes - number)
        count = max(0, size - len(hand))
        found += [*hand, *short[:count]]
        del short[:count]
    return found + short
