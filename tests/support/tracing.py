"""OpenTelemetry's SDK with spans in memory, and traces as other programs write them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

TRACE_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736
SPAN_ID = 0x00F067AA0BA902B7


class Switchable(SpanProcessor):
    """Does nothing, or what a test sets."""

    error: BaseException | None = None
    fails_at = ""

    def on_start(self, span: Span, parent_context: object = None) -> None:
        self._fail("start")

    def on_end(self, span: ReadableSpan) -> None:
        self._fail("end")

    def _fail(self, at: str) -> None:
        if self.error is not None and self.fails_at == at:
            raise self.error


@cache
def recording() -> tuple[InMemorySpanExporter, Switchable]:
    """Configure the global provider, which is possible once in a process."""
    exporter, switchable = InMemorySpanExporter(), Switchable()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.add_span_processor(switchable)
    trace.set_tracer_provider(provider)
    return exporter, switchable


def traceparent(*, sampled: bool = True, trace_id: int = TRACE_ID) -> str:
    return f"00-{trace_id:032x}-{SPAN_ID:016x}-{int(sampled):02x}"


@contextmanager
def within_trace(*, sampled: bool, state: dict[str, str] | None = None) -> Iterator[None]:
    """Be within the trace of another process: the current span has only a context."""
    entries = list((state or {}).items())
    context = SpanContext(
        TRACE_ID, SPAN_ID, is_remote=True, trace_flags=TraceFlags(sampled), trace_state=TraceState(entries)
    )
    with trace.use_span(NonRecordingSpan(context)):
        yield
