"""Configuration of Sphinx: `sphinx-build -W docs <output folder>`."""

import re
import sys
from pathlib import Path

import django
from django.conf import settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# autodoc imports the models, which requires configured settings.
settings.configure(
    SECRET_KEY="only for the documentation",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_outbox"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    OUTBOX={"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}},
)
django.setup()

project = "django_outbox"
metadata = (ROOT / "pyproject.toml").read_text()
release = re.findall(r'^version = "(.+)"', metadata, re.MULTILINE)[0]
SOURCE = re.findall(r'^Source = "(.+)"', metadata, re.MULTILINE)[0]
copyright = "django_outbox contributors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.extlinks", "sphinx.ext.napoleon"]
extlinks = {"source": (SOURCE + "/blob/main/%s", "%s")}
html_theme = "furo"
html_title = f"django_outbox {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
# For coding assistants, at the root of the site.
html_extra_path = ["llms.txt"]
exclude_patterns = ["_build"]

# Docstrings mark code with single backticks.
default_role = "code"
autodoc_member_order = "bysource"
# A long signature has one parameter per line.
python_maximum_signature_line_length = 100
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

nitpicky = True
# Names outside this documentation cannot be linked without network access. Stores, waits, outages and the
# kinds of events are not public.
nitpick_ignore_regex = [
    ("py:.*", r"(?!django_outbox\.).*"),
    (
        "py:class",
        r"django_outbox\.(stores|relay\.limits|service|enqueueing\.events|events\.registry)\..*",
    ),
    ("py:class", r"django_outbox\.retry\.Backoff"),
    # Type variables.
    ("py:class", r"django_outbox\.(handlers\.registry|enqueueing\.asynchronous)\.[PR]"),
]
