"""State that the threads that publish share with the thread that serves their connection."""

import threading
from collections import deque

import pika

from django_outbox.brokers.rabbitmq.batch import Batch


class Intake:
    """The batches that a connection has accepted and not sent yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def is_closed(self) -> bool:
        """Whether no further batch is accepted."""
        return self._is_closed

    def put(self, batch: Batch) -> bool:
        """Accept a batch; False if the intake is closed."""
        with self._lock:
            if not self._is_closed:
                self._batches.append(batch)
            return not self._is_closed

    def put_back(self, batch: Batch) -> None:
        """Return a batch that must be sent again, before all others."""
        self._batches.appendleft(batch)

    def pop(self) -> Batch:
        """Remove and return the next batch."""
        return self._batches.popleft()

    def close(self) -> None:
        """Accept no further batches; those accepted before are still sent."""
        with self._lock:
            self._is_closed = True

    def clear(self) -> list[Batch]:
        """Remove and return all batches."""
        batches = [*self._batches]
        self._batches.clear()
        return batches


class Status:
    """The state of a session. Only the session's thread changes it; any thread may read it.

    Attributes:
        host: the node that the session is connected to, or is trying to connect to.
        error: the reason why the session ended; blank until then.
        is_settled: set when the session is connected, or has failed.
    """

    def __init__(self, host: pika.URLParameters) -> None:
        self.host = host
        self.error = ""
        self.is_settled = threading.Event()

    @property
    def address(self) -> str:
        """Host and port of the node."""
        return f"{self.host.host}:{self.host.port}"
