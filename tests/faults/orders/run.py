"""A run: servers, services, buyers and kills; then a drain, and the count."""

import sys
import threading
import time

from tests.faults.breaking import Breaking, make_schedule
from tests.faults.brokers.rabbitmq import RabbitMQ
from tests.faults.faults_of_rabbitmq import node
from tests.faults.orders import ledger as ledgers
from tests.faults.orders.kinds import is_at_work, kinds_for
from tests.faults.orders.plan import BILLING, QUEUE, Plan
from tests.faults.orders.report import Result
from tests.faults.orders.services import BILLING_RELAY, INBOX, MANAGE, SHOP_RELAY, Services, count_lines
from tests.faults.places import Places
from tests.faults.servers import DATABASE, SERVERS, TABLE, DatabaseServer
from tests.faults.stage import Scene
from tests.support.children import Nursery, SuiteError, wait_until
from tests.support.proxies import Proxies

PATIENCE = 60.0
"""Seconds without progress after which the run waits no longer for the rest of the messages."""

PENDING = f"SELECT count(*) FROM {TABLE} WHERE available_at IS NOT NULL"


class Run:
    """One run of a plan; `execute` may be called once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.monotonic()
        self._deadline = self._began + plan.minutes * 60
        self._problem = ""

    def execute(self) -> Result:
        """Execute the plan.

        Raises:
            SuiteError: a server could not be made or started, or a process of the suite itself failed.
        """
        plan = self._plan
        schedule = make_schedule(kinds_for(plan.kinds), plan.kills, plan.seed)
        with Nursery(plan.keep_logs) as nursery, Proxies() as proxies:
            broker, database = start_servers(nursery, plan.database)
            services = Services(plan, nursery, database, broker)
            prepare(nursery, database, services)
            scene = Scene(
                nursery=nursery,
                database=database,
                broker=broker,
                relays=Places(nursery, services.make_places(proxies), plan.seed),
                began=self._began,
            )
            versions = (database.version(), broker.version())
            scene.say(f"{', '.join(versions)} are up")
            breaking = Breaking(scene, schedule, lambda: self._count_placed(services) / plan.orders)
            with scene.relays:
                wait_until(lambda: all(map(is_at_work, scene.relays.all)), PATIENCE, "the start of all processes")
                with breaking:
                    self._place_orders(scene, services, breaking)
                self._drain(scene)
                scene.relays.stop_all()
            # Messages that were delivered again must not make a second invoice.
            nursery.run([*SHOP_RELAY, "--drain"], environment=services.shop())
            nursery.run([*INBOX, "--idle-exit", "10"], environment=services.billing())
            nursery.run([*BILLING_RELAY, "--drain"], environment=services.billing())
            return Result(
                plan=plan,
                ledger=ledgers.check(database, services.journals, services.received),
                kills=tuple(breaking.inflicted),
                versions=versions,
                starts=scene.relays.starts,
                processes=scene.relays.broken_promises,
                seconds=time.monotonic() - self._began,
                problem=self._problem,
            )

    def _count_placed(self, services: Services) -> int:
        return count_lines(services.journals, " 201")

    def _place_orders(self, scene: Scene, services: Services, breaking: Breaking) -> None:
        """Let the writers write at the pace of the kills, until both are done."""
        plan = self._plan
        writers = [place for place in scene.relays.all if place.ends]
        told = 0.0
        while breaking.running or not all(writer.ended for writer in writers):
            if breaking.failures:
                raise SuiteError(breaking.failures[0])
            if scene.relays.broken_promises:
                self._problem = "a process ended by itself"
            elif time.monotonic() > self._deadline:
                self._problem = f"not all orders were placed within {plan.minutes:g} minutes"
            if self._problem:
                # What was placed until now is delivered and counted.
                services.allow(0)
                return
            services.allow(-(-plan.orders * breaking.allow() // plan.writers))
            if time.monotonic() - told > 5:
                told = time.monotonic()
                scene.say(
                    f"{self._count_placed(services):,} orders placed, "
                    f"{len(breaking.inflicted)} of {breaking.todo} kills, {self._count_left(scene):,} messages left"
                )
            time.sleep(0.1)

    def _drain(self, scene: Scene) -> None:
        """Wait until no message is left, for as long as there is progress."""
        scene.say("no more kills; draining")
        best, since, told = sys.maxsize, time.monotonic(), 0.0
        while left := self._count_left(scene):
            now = time.monotonic()
            if now - told > 5:
                told = now
                scene.say(f"{left:,} messages left")
            if 0 <= left < best:
                best, since = left, now
            if now - since > PATIENCE:
                self._problem = f"{left:,} messages are left, and their number no longer falls"
                return
            time.sleep(0.3)

    def _count_left(self, scene: Scene) -> int:
        """Return the number of messages on their way; -1 while a server is down."""
        try:
            return (
                int(scene.database.rows(PENDING, (), DATABASE)[0][0])
                + int(scene.database.rows(PENDING, (), BILLING)[0][0])
                + node(scene).depth_of([QUEUE])
            )
        except Exception:
            return -1


def start_servers(nursery: Nursery, vendor: str) -> tuple[RabbitMQ, DatabaseServer]:
    """Start both servers at the same time, and create the database of billing."""
    broker = RabbitMQ(nursery)
    failures: list[Exception] = []

    def start_broker() -> None:
        try:
            broker.start()
        except Exception as error:
            failures.append(error)

    starting = threading.Thread(target=start_broker)
    starting.start()
    try:
        database = SERVERS[vendor](nursery)
        database.start()
        database.prepare()
        database.rows(f"CREATE DATABASE {BILLING}")
    finally:
        starting.join()
    if failures:
        raise failures[0]
    return broker, database


def prepare(nursery: Nursery, database: DatabaseServer, services: Services) -> None:
    """Create the tables, and declare the queue of billing."""
    migrate = [*MANAGE, "migrate", "--verbosity=0"]
    for name, environment in (("shop", services.shop()), ("billing", services.billing())):
        child = nursery.start(f"migrate-{name}", migrate, environment=environment)
        if child.wait(120) != 0:
            raise SuiteError(f"migrate failed:\n{child.tail()}")
    declare = [*MANAGE, "consume_orders", "--queue", QUEUE, "--declare-only"]
    nursery.run(declare, environment=services.shop())
