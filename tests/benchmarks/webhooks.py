"""Rate of webhooks to a receiver of this machine, compared with httpx in a pool of as many threads.

The receiver is a process of its own that responds at once and reads nothing but the length of a request.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

import httpx

from django_outbox.brokers.http import HTTPPublisher
from django_outbox.messages import ACCEPTED, Message
from tests.benchmarks.measuring import BenchmarkError, Run
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report, compare
from tests.support.claimed import make_message

SECRET = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
BATCH_SIZE = 100

Publish = Callable[[Sequence[Message]], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=1000, concurrency=20, repeats=7)


def run(options: argparse.Namespace) -> Report:
    payload = b'{"text": "' + b"x" * 240 + b'"}'
    messages = [make_message("orders", payload) for _ in range(options.messages)]
    with receiver() as url, in_threads(url, options.concurrency) as bare, publisher(url, options.concurrency) as outbox:
        cases = {"httpx.Client in threads": bare, "HTTPPublisher": outbox}
        for publish in cases.values():
            publish(messages[:BATCH_SIZE])

        def measure(case: str) -> Run:
            began, cpu = time.perf_counter(), time.process_time()
            for start in range(0, len(messages), BATCH_SIZE):
                cases[case](messages[start : start + BATCH_SIZE])
            seconds = time.perf_counter() - began
            return Run(len(messages), seconds, {"sender µs": 1e6 * (time.process_time() - cpu) / len(messages)})

        title = f"Webhooks, {options.concurrency} at once"
        return compare(title, [*cases] * options.repeats, measure, ratio="of httpx")


@contextmanager
def publisher(url: str, concurrency: int) -> Iterator[Publish]:
    """Return a function that publishes a batch as the relay does, signed."""
    outbox = HTTPPublisher("bench", url=url, concurrency=concurrency, secrets=SECRET, allow_private_addresses=True)

    def publish(messages: Sequence[Message]) -> None:
        if outbox.publish(messages) != [ACCEPTED] * len(messages):
            raise BenchmarkError("The receiver did not accept all webhooks.")

    yield publish
    outbox.close()


@contextmanager
def in_threads(url: str, concurrency: int) -> Iterator[Publish]:
    """Return a function that posts a batch with httpx, with fixed headers instead of signatures."""
    headers = {"content-type": "application/json", "webhook-timestamp": "1", "webhook-signature": f"v1,{'A' * 44}"}
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    with httpx.Client(limits=limits) as client, ThreadPoolExecutor(concurrency) as threads:

        def post(message: Message) -> int:
            return client.post(
                url, content=message.payload, headers={**headers, "webhook-id": message.message_id}
            ).status_code

        def publish(messages: Sequence[Message]) -> None:
            if set(threads.map(post, messages)) != {204}:
                raise BenchmarkError("The receiver did not accept all webhooks.")

        yield publish


@contextmanager
def receiver() -> Iterator[str]:
    """Run the receiver, and return its URL."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=[theirs], daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/hooks"
    finally:
        process.terminate()
        process.join()


def _serve(ready: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Receiver, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


class _Receiver(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            length = self._data[:end].lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            end += 4 + int(length)
            if len(self._data) < end:
                return
            self._data = self._data[end:]
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
