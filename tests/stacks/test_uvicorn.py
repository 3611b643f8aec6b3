"""Async views under uvicorn: `enqueue` in a thread, and Django's own tasks."""

from concurrent.futures import ThreadPoolExecutor

from tests.stacks.support import Project, get
from tests.support.ports import free_port
from tests.support.shop import PATIENCE
from tests.support.waiting import eventually

PACKAGES = ("Django==6.1.3", "psycopg[binary]==3.3.9", "uvicorn==0.54.0")
POSTGRESQL = True

TASKS = """\
from django.tasks import task

from .models import Order


@task
def note(number):
    Order.objects.create(number=f"noted {number}")
"""

VIEWS = """

from django.http import HttpResponse

from .tasks import note


async def note_async(request, number):
    result = await note.aenqueue(number)
    return HttpResponse(result.id)
"""


def test_concurrent_requests_enqueue_one_message_each(project: Project):
    project.write("mysite/tasks.py", TASKS)
    project.append("mysite/views.py", VIEWS)
    project.append("mysite/urls.py", 'urlpatterns += [path("notes/<str:number>/", views.note_async)]')
    project.configure("""
INSTALLED_APPS += ["django_outbox.contrib.django_tasks"]
OUTBOX["PUBLISHERS"]["handlers"] = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}
TASKS = {"default": {"BACKEND": "django_outbox.contrib.django_tasks.OutboxBackend"}}
""")
    project.migrate()
    port = free_port()
    server = project.start("uvicorn", "mysite.asgi:application", f"--port={port}", "--workers=2")
    address = f"http://127.0.0.1:{port}"
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(lambda number: get(f"{address}/async/{number}/"), range(200)))
        ids = set(pool.map(lambda number: get(f"{address}/notes/{number}/"), range(200)))
    assert get(f"{address}/async/lost/?fail", status=500)
    assert len(ids) == 200
    assert project.count("publisher = 'default'") == project.count("publisher = 'handlers'") == 200
    server.stop()
    assert "400 delivered" in project.manage("run_outbox", "--drain")
    assert project.count("number LIKE 'noted %%'", "mysite_order") == 200
    eventually(lambda: not project.sessions(), "no session is left", seconds=PATIENCE)
