"""The steps of a schedule, and their frequencies."""

from typing import NamedTuple

from hypothesis import strategies as st

from tests.stores.schedules.model import Outcome

KEYS = ("a", "a", "b", "")


class Write(NamedTuple):
    """A writer writes messages of a key and commits."""

    key: str
    messages: int


class Enqueue(NamedTuple):
    """A writer writes a message in its transaction, and begins one if it has none."""

    writer: int
    key: str
    locked: bool
    delayed: bool


class End(NamedTuple):
    """A writer ends its transaction."""

    writer: int
    commits: bool


class Proceed(NamedTuple):
    """A relay takes its next step: it claims a batch, publishes it, or settles it."""

    relay: int
    limit: int
    outcomes: list[Outcome]
    delete: bool


class BreakOff(NamedTuple):
    """A relay dies, or gives its batch back."""

    relay: int
    dies: bool


class Operate(NamedTuple):
    """An operator acts, or time passes."""

    pick: int


class Interfere(NamedTuple):
    """Another program deletes or fails a message that a relay has claimed."""

    relay: int
    pick: int
    delete: bool


class Hold(NamedTuple):
    """An operator holds a pending message in a transaction, and begins one if there is none."""

    pick: int


class Release(NamedTuple):
    """The operator ends that transaction."""

    commits: bool


class Freeze(NamedTuple):
    """Every relay stands still until its claim has run out."""


Step = Hold | Release | Freeze | Interfere | Write | Enqueue | End | Proceed | BreakOff | Operate

keys = st.sampled_from(KEYS)
actors = st.integers(0, 2)
proceed = st.builds(
    Proceed,
    actors,
    st.sampled_from([1, 2, 3, 1000]),
    st.lists(st.sampled_from([each for each in Outcome if each is not Outcome.HELD]), min_size=1, max_size=4),
    st.booleans(),
)
enqueue_one = st.builds(Enqueue, actors, keys, st.booleans(), st.sampled_from([False, False, False, True]))
end = st.builds(End, actors, st.sampled_from([True, True, False]))
operate = st.builds(Operate, st.integers(0, 15))

# The more often a step is listed, the more often it is drawn.
steps = st.one_of(
    *[proceed] * 5,
    *[operate] * 4,
    *[enqueue_one] * 2,
    *[end] * 2,
    *[st.builds(Interfere, actors, st.integers(0, 3), st.booleans())] * 2,
    *[st.builds(Hold, st.integers(0, 3))] * 2,
    st.builds(Release, st.booleans()),
    st.builds(Freeze),
    st.builds(Write, keys, st.integers(1, 3)),
    st.builds(BreakOff, actors, st.booleans()),
)
