"""Async views under uvicorn."""

from concurrent.futures import ThreadPoolExecutor

from tests.stacks.support import Project, get
from tests.support.ports import free_port

PACKAGES = ("Django==6.1.3", "psycopg[binary]==3.3.9", "uvicorn==0.54.0")
POSTGRESQL = True


def test_concurrent_requests_enqueue_one_message_each(project: Project):
    project.migrate()
    port = free_port()
    server = project.start("uvicorn", "mysite.asgi:application", f"--port={port}", "--workers=2")
    address = f"http://127.0.0.1:{port}/async"
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda number: get(f"{address}/{number}/"), range(200)))
    server.stop()
    printed = project.manage("run_outbox", "--drain")
    assert "200 delivered" in printed, printed
