"""The relay's log through structlog's `ProcessorFormatter`, as JSON."""

import json

from tests.stacks.support import Project

PACKAGES = ("Django==6.1.3", "structlog==26.1.0")

LOGGING = """
import structlog
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "json": {
            "()": structlog.stdlib.ProcessorFormatter,
            "foreign_pre_chain": [
                structlog.stdlib.add_log_level,
                structlog.processors.EventRenamer("message"),
                structlog.stdlib.ExtraAdder(),
            ],
            "processors": [
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        }
    },
    "handlers": {"json": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["json"], "level": "INFO"},
}
OUTBOX["PUBLISHERS"]["default"] = {
    "BACKEND": "django_outbox.handlers.HandlersPublisher", "RETRY": {"MAX_ATTEMPTS": 1}
}
"""
HANDLER = """
from django_outbox.handlers import handler


@handler("order.created")
def refuse(payload, message):
    raise ValueError(f"closed\\nfor order {payload['number']}")
"""


def test_lines_are_json_with_the_documented_fields(project: Project):
    project.write("mysite/handlers.py", HANDLER)
    project.configure(LOGGING)
    project.migrate()
    project.place_orders(1)
    printed = project.manage("run_outbox", "--drain")
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    [failed] = [line for line in lines if line["event"] == "relay.messages_failed"]
    assert failed["level"] == "error"
    assert failed["message"].startswith("Publisher 'default'")
    fields = ("publisher", "database", "count", "error_class")
    assert [failed[field] for field in fields] == ["default", "default", 1, "ValueError"]
    assert failed["ids"] == [1]
    assert "closed" in failed["reason"]
    assert "Traceback" in failed["exception"]
