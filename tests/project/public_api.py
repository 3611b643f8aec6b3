"""Describe the public API as text: every name in the `__all__` of a public module, with its signature.

It reads the source instead of importing it, so that the text is the same with every version of Python and Django.
"""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import django_outbox

MODULES = (
    "django_outbox",
    "django_outbox.models",
    "django_outbox.exceptions",
    "django_outbox.events",
    "django_outbox.relay",
    "django_outbox.retention",
    "django_outbox.retention.purge",
    "django_outbox.db.autovacuum",
    "django_outbox.retry",
    "django_outbox.messages",
    "django_outbox.brokers",
    "django_outbox.brokers.aws",
    "django_outbox.brokers.celery",
    "django_outbox.brokers.console",
    "django_outbox.brokers.http",
    "django_outbox.brokers.kafka",
    "django_outbox.brokers.memory",
    "django_outbox.brokers.nats",
    "django_outbox.brokers.rabbitmq",
    "django_outbox.brokers.redis",
    "django_outbox.handlers",
    "django_outbox.testing",
    "django_outbox.inbox",
    "django_outbox.inbox.models",
    "django_outbox.signals",
    "django_outbox.celery",
    "django_outbox.tasks",
    "django_outbox.beat",
    "django_outbox.monitoring.prometheus",
    "django_outbox.contrib.django_tasks",
)
SNAPSHOT = Path(__file__).with_name("public_api.txt")
ROOT = Path(django_outbox.__file__).parent.parent
MAX_WIDTH = 100
INDENT = "    "
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def unparse(node: ast.AST) -> str:
    """Return the source of a node as Python 3.11 and newer write it; 3.10 puts a blank after a bare `lambda`."""
    return ast.unparse(node).replace("lambda :", "lambda:")


def describe() -> str:
    blocks = ([module, *(f"{INDENT}{line}" for line in lines_of(module))] for module in MODULES)
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def lines_of(module: str) -> Iterator[str]:
    for name in exported(module):
        home, definition = find(module, name)
        if home != module and home in MODULES:
            yield f"{name} (from {home})"
        else:
            yield from lines_of_definition(definition, home)


def parse(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def exported(module: str) -> list[str]:
    for node in parse(module).body:
        if isinstance(node, ast.Assign) and unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise AssertionError(f"{module} has no __all__.")


def find(module: str, name: str) -> tuple[str, ast.stmt]:
    """Return the module that defines a name, and the definition."""
    for node in statements(parse(module).body):
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            return find(node.module, name)
        if isinstance(node, FUNCTION | ast.ClassDef) and node.name == name and not is_overload(node):
            return module, node
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in assigned(node):
            return module, node
    raise AssertionError(f"{module} does not define {name}, which its __all__ contains.")


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return whether it is one of several signatures, and not the function itself."""
    return any(unparse(each) == "overload" for each in node.decorator_list)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, including those within `if TYPE_CHECKING:`."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from statements(node.body)


def assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    return [unparse(target) for target in (node.targets if isinstance(node, ast.Assign) else [node.target])]


def lines_of_definition(node: ast.stmt, module: str) -> Iterator[str]:
    """Yield a definition without docstrings, private members and bodies of functions."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        if isinstance(node.value, ast.Call) and len(unparse(node.value)) > MAX_WIDTH // 2:
            node.value.args, node.value.keywords = [ast.Constant(...)], []
        yield unparse(node)
    elif isinstance(node, FUNCTION | ast.ClassDef):
        body, node.body = node.body, []
        for line in unparse(node).rstrip(":").splitlines():
            yield from textwrap.wrap(line, MAX_WIDTH, subsequent_indent=2 * INDENT, break_on_hyphens=False)
        if isinstance(node, ast.ClassDef):
            members = [child for child in body if is_public(child)]
            yield from inherited_fields(node, module)
            yield from (f"{INDENT}{line}" for child in members for line in lines_of_definition(child, module))


def is_public(member: ast.stmt) -> bool:
    if isinstance(member, FUNCTION):
        return member.name == "__init__" or not member.name.startswith("_")
    return isinstance(member, ast.Assign | ast.AnnAssign) and not assigned(member)[0].startswith("_")


def inherited_fields(node: ast.ClassDef, module: str) -> Iterator[str]:
    """Yield the fields of a dataclass that it has from bases outside the public API."""
    imports = {
        alias.name: each.module
        for each in parse(module).body
        if isinstance(each, ast.ImportFrom) and each.module and each.module.startswith("django_outbox.")
        for alias in each.names
    }
    for base in (unparse(each).partition("[")[0] for each in node.bases):
        home = imports.get(base, module)
        if is_exported(base) or not any(
            isinstance(each, ast.ClassDef) and each.name == base for each in parse(home).body
        ):
            continue
        home, definition = find(home, base)
        assert isinstance(definition, ast.ClassDef)
        yield from inherited_fields(definition, home)
        for child in definition.body:
            if isinstance(child, ast.AnnAssign) and "ClassVar" not in unparse(child.annotation):
                (line,) = lines_of_definition(child, home)
                if not line.startswith("_") and "init=False" not in line:
                    yield f"{INDENT}{line}"


def is_exported(name: str) -> bool:
    return any(name in exported(module) for module in MODULES)


if __name__ == "__main__":
    SNAPSHOT.write_text(describe())
