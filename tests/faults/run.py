"""A run: build the stage, let the writers write, break things meanwhile, heal, drain, and check the ledger."""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults import ledger as ledgers
from tests.faults.breaking import Breaking, Inflicted, Schedule, make_schedule
from tests.faults.brokers import BROKERS
from tests.faults.kinds import faults_for
from tests.faults.plan import BATCH_SIZE, WORKERS, WRITERS, Plan
from tests.faults.relays import django_environment, make_relays
from tests.faults.report import Result
from tests.faults.servers import SERVERS, TABLE, PostgreSQL
from tests.faults.stage import Stage
from tests.support.children import Child, Nursery, SuiteError, wait_until
from tests.support.proxies import Proxies

BURST = 1.0
"""Seconds between two bursts of messages."""

WRITER_PATIENCE = 30.0
"""Seconds that a writer may take to end its transaction."""

HOLD = 0.03
"""Longest time in seconds for which a writer's transaction stays open."""

DRAIN_PATIENCE = 60.0
"""Seconds without progress after which a drain gives up."""


class Run:
    """One run of a plan; `execute` may be called once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = time.monotonic()
        self._deadline = self._began + plan.minutes * 60
        self._inflicted: list[Inflicted] = []

    def execute(self) -> Result:
        plan = self._plan
        with Nursery(plan.keep_logs) as nursery:
            self._arrivals = nursery.logs / "arrivals.journal"
            self._journals = [nursery.logs / f"writer-{number}.journal" for number in range(WRITERS)]
            self._dead = nursery.logs / "dead.journal"
            self._operations = nursery.logs / "operator.journal"
            self._late = nursery.logs / "late.journal"
            for journal in (self._arrivals, self._dead, self._operations, self._late, *self._journals):
                journal.unlink(missing_ok=True)
                journal.touch()
            with Proxies() as proxies:
                return self._on_stage(self._build(nursery, proxies))

    def _build(self, nursery: Nursery, proxies: Proxies) -> Stage:
        plan = self._plan
        broker = BROKERS[plan.broker](nursery)
        broker.deduplicate = plan.deduplicate
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(broker.start)
            database = SERVERS[plan.database](nursery)
            database.start()
            database.prepare()
            environment = django_environment(plan, database.url("writer"))
            nursery.run([sys.executable, "-m", "django", "migrate", "--verbosity=0"], environment=environment)
            if isinstance(database, PostgreSQL) and plan.source == "log":
                database.publish()
            starting.result()
        broker.declare()

        def start_consumer() -> Child:
            return nursery.start(
                "consumer",
                [sys.executable, "-m", broker.consumer, broker.url(), self._arrivals, self._dead],
                environment=environment,
            )

        return Stage(
            plan=plan,
            nursery=nursery,
            database=database,
            broker=broker,
            relays=make_relays(plan, nursery, database, broker, proxies, late=self._late),
            consumer=start_consumer(),
            start_consumer=start_consumer,
            journals=self._journals,
            began=self._began,
        )

    def _on_stage(self, stage: Stage) -> Result:
        plan = self._plan
        versions = (stage.database.version(), stage.broker.version())
        stage.say(f"{', '.join(versions)} are up")
        problem = ""
        with stage.relays:
            try:
                with self._operator(stage) as operator:
                    with self._writers(stage) as writers:
                        self._load(stage, writers)
                    if plan.failed_blocks_key:
                        # Blocked messages are delivered once all failed ones are repaired or discarded.
                        operator.input.write(b"finish\n")
                        operator.input.flush()
                        self._drain(stage)
                self._drain(stage)
            except TimeoutError as error:
                problem = str(error)
            finally:
                stage.over.set()
            stage.relays.stop_all()
        self._finish_consumer(stage)
        stage.say("checking the ledger")
        ledger = ledgers.check(
            ledgers.Journals(self._journals, self._arrivals, self._dead, self._operations, self._late),
            stage.database,
            stage.refusals,
            stage.windows,
            blocks_key=plan.failed_blocks_key,
        )
        struck = sum(fault.struck for fault in self._inflicted) + ledger.closing
        ledger.sent_again_bound = BATCH_SIZE * WORKERS * struck
        for text in stage.relays.broken_promises:
            ledger.breaks(ledgers.Promise.BAD_END, text)
        return Result(
            plan=self._plan,
            ledger=ledger,
            faults=tuple(self._inflicted),
            seconds=time.monotonic() - self._began,
            versions=versions,
            problem=problem,
        )

    @contextlib.contextmanager
    def _operator(self, stage: Stage) -> Iterator[Child]:
        """Let an operator requeue, mend and discard failed messages until the context ends."""
        operator = stage.start_process("operator", "operations", seed=self._plan.seed, journal=str(self._operations))
        yield operator
        if operator.code is None:
            operator.input.close()
        if operator.wait(WRITER_PATIENCE) != 0:
            raise SuiteError(f"the operator ended with {operator.code}:\n{operator.tail()}")

    @contextlib.contextmanager
    def _writers(self, stage: Stage) -> Iterator[list[Child]]:
        plan = self._plan
        shares = [plan.messages // WRITERS] * WRITERS
        shares[0] += plan.messages % WRITERS
        writers = [
            stage.start_process(
                f"writer-{number}",
                "workload",
                number=number,
                keys=plan.keys,
                seed=plan.seed,
                poison=[kind.value for kind in stage.broker.poison],
                unroutable=plan.unroutable,
                hold=HOLD,
                giants=10,
                messages=share,
                journal=str(self._journals[number]),
            )
            for number, share in enumerate(shares)
        ]
        try:
            yield writers
        finally:
            for writer in writers:
                with contextlib.suppress(OSError):
                    writer.input.close()
                writer.wait(10)
                writer.kill()

    def _load(self, stage: Stage, writers: list[Child]) -> None:
        """Let the writers write at the pace of the faults, and the faults happen at the pace of the writers."""
        self._progress = Progress(self._journals, self._arrivals)
        breaking = Breaking(stage, self.schedule(), lambda: self._progress.written / self._plan.messages)
        self._inflicted = breaking.inflicted
        with breaking:
            self._pace(stage, writers, breaking)

    def _pace(self, stage: Stage, writers: list[Child], breaking: Breaking) -> None:
        plan, todo = self._plan, breaking.todo
        told, burst = 0.0, 0.0
        while True:
            self._progress.update()
            done = len(self._inflicted)
            if breaking.failures:
                raise SuiteError(f"{breaking.failures[0]}\n{stage.scene()}")
            if time.monotonic() > self._deadline:
                raise TimeoutError(f"the load was not over after {plan.minutes:g} minutes\n{stage.scene()}")
            running = breaking.running
            allowed = plan.messages * breaking.allow()
            finished = 0
            for writer in writers:
                code = writer.code
                if code:
                    raise SuiteError(f"{writer.name} ended with {code}:\n{writer.tail()}")
                finished += code == 0
                # In bursts, so that there is always more than one batch in flight.
                with contextlib.suppress(OSError):
                    if time.monotonic() > burst:
                        writer.input.write(b"%d\n" % (-(-allowed // len(writers))))
                        writer.input.flush()
            if finished == len(writers) and not running:
                return
            if time.monotonic() > burst:
                burst = time.monotonic() + BURST
            with stage.consumer_lock:
                if stage.consumer.code is not None:
                    raise SuiteError(f"the consumer ended with {stage.consumer.code}:\n{stage.consumer.tail()}")
            if time.monotonic() - told > 5:
                told = time.monotonic()
                stage.say(
                    f"{self._progress.written:,} written, {self._progress.arrived:,} arrived, {done} of {todo} faults"
                )
            time.sleep(0.1)

    def schedule(self) -> Schedule:
        """Return the faults by lane: when they are due, as a share of the messages, and each one's own chance."""
        plan = self._plan
        kinds = faults_for(plan.broker, plan.kinds)
        unknown = set(plan.kinds) - {kind.name for kind in kinds}
        if unknown or not kinds:
            names = ", ".join(sorted(unknown))
            raise SuiteError(f"{plan.broker} has no faults of the kinds {names}")
        return make_schedule(kinds, plan.faults, plan.seed)

    def _drain(self, stage: Stage) -> None:
        """Wait until nothing is pending, for as long as there is progress."""
        stage.say("all faults are healed; draining")
        pending = f"SELECT count(*) FROM {TABLE} WHERE {stage.database.undelivered}"
        best, since, told = math.inf, time.monotonic(), 0.0
        while left := stage.database.rows(pending)[0][0]:
            now = time.monotonic()
            if left < best:
                best, since = left, now
            if now - since > DRAIN_PATIENCE or now > self._deadline:
                stage.say(f"{left:,} are still pending, and their number no longer falls\n{stage.scene()}")
                return
            if now - told > 5:
                told = now
                stage.say(f"{left:,} pending")
            time.sleep(0.3)

    def _finish_consumer(self, stage: Stage) -> None:
        with contextlib.suppress(SuiteError):
            wait_until(lambda: stage.broker.depth() == 0, 60, "an empty queue", pause=0.3)
        stage.consumer.send(signal.SIGTERM)
        if stage.consumer.wait(30) != 0:
            raise SuiteError(f"the consumer ended with {stage.consumer.code}:\n{stage.consumer.tail()}")


class Progress:
    """Counts the lines that processes have added to their journals."""

    def __init__(self, journals: list[Path], arrivals: Path) -> None:
        self._offsets = dict.fromkeys((*journals, arrivals), 0)
        self._arrivals = arrivals
        self.written = 0
        self.arrived = 0

    def update(self) -> None:
        for path, offset in self._offsets.items():
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            self._offsets[path] = offset + len(data)
            if path == self._arrivals:
                self.arrived += data.count(b"\n")
            else:
                self.written += data.count(b"\n") - data.count(b" rolled-back ")
