"""From a naive loop to this outbox, step by step.

Each step keeps the changes of the steps before it. Their workers are processes; those of this outbox are threads of one
process. The messages are behind processed ones that are kept. The steps that wait for each confirm end after a 25th of
the messages.
"""

import argparse
from contextlib import nullcontext

from django.db import connection

from django_outbox import OutboxMessage
from tests.benchmarks.brokers.rabbitmq import QuorumQueues
from tests.benchmarks.ladder_steps import Step, run_step
from tests.benchmarks.measuring import Run
from tests.benchmarks.options import add_numbers, output_file
from tests.benchmarks.plot import draw_ladder
from tests.benchmarks.relays import timed_drain
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import empty, insert_rows, restore, save, without_indexes
from tests.benchmarks.workspace import require_server

OUTBOX = Step("django_outbox")

STEPS = [
    Step("naive loop", indexed=False, batched_publish=False, batched_settle=False),
    Step("index", batched_publish=False, batched_settle=False),
    Step("batched publish", batched_settle=False),
    Step("batched settle"),
    Step("2 workers", workers=2),
    Step("pipelined confirms", workers=2, in_flight=2),
    OUTBOX,
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=50_000, rows=200_000, batch_size=2000, repeats=3)
    parser.add_argument("--plot", metavar="FILE", type=output_file, help="Draw the steps there, as SVG.")


def run(options: argparse.Namespace) -> Report:
    require_server()
    with QuorumQueues() as queues:
        empty()
        insert_rows(options.rows, processed="-1.0 - number % 86400")
        kept = OutboxMessage.objects.latest("id").pk
        save("ladder", options.messages, above=kept, seed=options.seed, topics=queues.topics)

        def climb(step: Step) -> Run:
            if step is OUTBOX:
                run = timed_drain(queues, "ladder", batch_size=options.batch_size, above=kept)
                return Run(run.messages, run.seconds)
            with nullcontext() if step.indexed else without_indexes():
                restore("ladder", above=kept)
                queues.purge()
                limit = options.messages if step.batched_publish else max(options.messages // 25, 1)
                run = run_step(step, queues.url, queues.name, batch_size=options.batch_size, limit=limit)
            queues.expect(run.messages)
            return run

        title = f"From {connection.display_name} to quorum queues, every message confirmed"
        report = compare(title, STEPS * options.repeats, climb, ratio="factor")
    if options.plot:
        footer = f"Messages of 250 bytes in batches of {options.batch_size:,}. Factors compare with the naive loop."
        draw_ladder(options.plot, title, {row[0]: row[2] for row in report.rows}, footer)
    return report
