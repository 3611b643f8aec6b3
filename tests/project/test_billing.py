"""The billing service's consumer of a file. The demo and the end-to-end tests show the service as a whole."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from billing.consumers import FileConsumer

from django_outbox.brokers import Incoming, Unavailable

MESSAGE_ID = str(uuid.uuid4())
LINE = json.dumps(
    {
        "message_id": MESSAGE_ID,
        "type": "order.placed",
        "destination": "orders",
        "key": "order-1",
        "occurred_at": "2026-05-01T08:30:00+00:00",
        "headers": {"event-version": 1},
        "payload": {"total": "9.50"},
    }
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "messages.jsonl"
    path.touch()
    return path


@pytest.fixture
def consumer(path: Path) -> Iterator[FileConsumer]:
    consumer = FileConsumer("orders", path=str(path), batch_size=2)
    consumer.open()
    yield consumer
    consumer.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_line_is_delivered_as_the_console_publisher_wrote_it(consumer: FileConsumer, path: Path):
    append(path, f"{LINE}\n")
    [incoming] = consumer.receive(0)
    assert incoming == Incoming(
        len(LINE) + 1,
        b'{"total": "9.50"}',
        message_id=MESSAGE_ID,
        type="order.placed",
        topic="orders",
        key="order-1",
        headers={"event-version": 1},
    )


def test_a_line_that_is_still_being_written_is_delivered_when_it_is_complete(consumer: FileConsumer, path: Path):
    append(path, LINE[:50])
    assert consumer.receive(0) == []
    append(path, f"{LINE[50:]}\n")
    assert [incoming.message_id for incoming in consumer.receive(0)] == [MESSAGE_ID]


def test_lines_are_delivered_in_batches_and_again_when_the_file_is_opened_again(consumer: FileConsumer, path: Path):
    append(path, f"{LINE}\n" * 3)
    assert [len(consumer.receive(0)) for _ in range(3)] == [2, 1, 0]
    consumer.close()
    consumer.open()
    assert len(consumer.receive(0)) == 2


@pytest.mark.parametrize("line", ["{", "[]", '{"payload": 1}', "\x00"], ids=["cut off", "list", "no ID", "NUL"])
def test_a_line_of_another_program_has_a_problem(consumer: FileConsumer, path: Path, line: str):
    append(path, f"{line}\n")
    assert "not one of a console publisher" in consumer.receive(0)[0].problem


def test_a_file_that_does_not_exist_is_unavailable(tmp_path: Path):
    with pytest.raises(Unavailable, match="cannot be read: No such file"):
        FileConsumer("orders", path=str(tmp_path / "missing")).open()
