"""Set up everything that the tests need, and run them.

The only requirement is Python 3.10 or newer. Outside a virtualenv, this script creates and uses `.venv` next to
`pyproject.toml`. It finds or starts PostgreSQL, MariaDB, RabbitMQ, Redis and NATS; `tests/support/servers.py` states
where it looks.
"""

import argparse
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if sys.version_info < (3, 10):  # noqa: UP036 - an older Python needs a clear message
    sys.exit(f"Python 3.10 or newer is required; this is Python {sys.version.split()[0]}.")

from tests.support import servers, system_packages  # noqa: E402 - an older Python cannot read them

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"

SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])

EXAMPLES = """\
examples:
  python tests/run.py                  check style and types, build the docs, run all tests
  python tests/run.py -k enqueue       run the tests whose names contain "enqueue"
  python tests/run.py -m "not slow"    run the quick tests
  python tests/run.py --yes            install missing system packages without asking

environment:
  POSTGRES_URL, MARIADB_URL, MYSQL_URL, AMQP_URL, REDIS_URL,
  NATS_URL, KAFKA_URL
                                                    the servers to use
  OUTBOX_TEST_RUN                                   a suffix for the names of the test databases
"""

Steps = dict[str, list[str]]
"""The arguments of `python -m` for each step, by the step's name."""


class Ended(NamedTuple):
    """A step that has ended.

    Args:
        output: what it printed, if it failed and did not print that itself.
    """

    name: str
    code: int
    seconds: float
    output: str

    def __str__(self) -> str:
        return f"{self.name} {f'FAILED ({self.code})' if self.code else 'passed'} in {self.seconds:.0f} s"


class Program(NamedTuple):
    """A program that some tests need. It is installed if it is missing and this user may."""

    names: tuple[str, ...]
    packages: tuple[str, ...]
    tests: str

    def install(self) -> None:
        if any(shutil.which(name, path=SYSTEM_PATH) for name in self.names):
            return
        announce(f"Installing {self.names[0]} for the tests of {self.tests}")
        if not system_packages.install(*self.packages, purpose=f"install {self.names[0]}"):
            print(f"{self.names[0]} could not be installed. The tests that need it will fail.")


PROGRAMS = (
    Program(
        ("chromium", "chromium-browser", "google-chrome", "chrome"),
        ("chromium", "chromium-driver"),
        "pages in a browser",
    ),
    Program(("promtool",), ("prometheus",), "the alerts and the dashboard"),
    Program(("nats-server",), ("nats-server",), "outages of NATS"),
    Program(("pgbouncer",), ("pgbouncer",), "relays behind PgBouncer"),
)


def main(arguments: list[str]) -> int:
    """Set up, run, and return the exit code of the first step that failed, or 0."""
    options, pytest_arguments = make_parser().parse_known_args(arguments)
    if sys.prefix == sys.base_prefix:
        return run_in_virtualenv(arguments, yes=options.yes)
    if options.yes:
        system_packages.answer_yes()
    # Each of the hundreds of processes that tests start would compile the package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # It hides what happens to output that is still in a buffer when a process ends.
    os.environ.pop("PYTHONUNBUFFERED", None)
    install("test" if pytest_arguments else "dev")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as pool:
        # On a bare machine, the checks end before the servers are downloaded.
        checks = pool.submit(run_steps, {} if pytest_arguments else quick_checks(Path(scratch)))
        problem = prepare()
        ended = checks.result()
    for step in ended:
        print(step.output, end="")
    if problem or any(step.code for step in ended):
        announce(f"{PYTHON}: {', '.join([*map(str, ended), 'pytest not run'])}")
        sys.stderr.write(problem)
    else:
        tests = {"pytest": ["pytest", *pytest_arguments]} if pytest_arguments else all_tests(coverage=options.coverage)
        ended += run_steps(tests)
        announce(f"{PYTHON}: {', '.join(map(str, ended))}")
    return next((step.code for step in ended if step.code), int(bool(problem)))


def prepare() -> str:
    """Install the programs, find or start the servers, and note their URLs; return what is missing, or nothing."""
    for program in PROGRAMS:
        program.install()
    announce("Looking for the servers")
    try:
        os.environ.update(servers.find_all())
    except servers.ServerMissing as error:
        return f"\n{error}\n"
    return ""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script's own options; all others are pytest's."""
    parser = argparse.ArgumentParser(
        prog="python tests/run.py",
        usage="%(prog)s [--yes] [--coverage | pytest arguments]",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="install missing system packages and start servers without asking; without a terminal it never asks",
    )
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="measure which lines the tests run, and fail below the limit in pyproject.toml; slow before Python 3.12",
    )
    return parser


def quick_checks(scratch: Path) -> Steps:
    """Return the steps that take seconds; `scratch` is a temporary folder."""
    steps = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "mypy": ["mypy"],
        "docs": ["sphinx", "-W", "-q", "--keep-going", "docs", str(scratch / "html")],
        # pytest compiles the tests. Otherwise each process of the next step would.
        "collection": ["pytest", "--collect-only", "-qq"],
    }
    if sys.version_info < (3, 11):
        announce("The docs are not built: myst-parser needs Python 3.11")
        del steps["docs"]
    return steps


def all_tests(*, coverage: bool) -> Steps:
    """Return the step that takes minutes."""
    # Tests wait more than they compute.
    processes = min(3 * (os.cpu_count() or 1), 12)
    measuring = ["--cov", "--cov-report=term:skip-covered"] if coverage else []
    if coverage and sys.version_info >= (3, 12):
        # It costs next to nothing.
        os.environ["COVERAGE_CORE"] = "sysmon"
    return {"pytest": ["pytest", "-n", str(processes), "--dist", "worksteal", *measuring]}


def run_steps(steps: Steps) -> list[Ended]:
    """Run steps at the same time, because mypy uses one processor. Of several, only failed ones show their output."""
    if not steps:
        return []
    announce(", ".join(steps))
    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(functools.partial(run_step, is_alone=len(steps) == 1), steps.items()))


def run_step(step: tuple[str, list[str]], *, is_alone: bool) -> Ended:
    name, module = step
    start = time.monotonic()
    to, errors = (None, None) if is_alone else (subprocess.PIPE, subprocess.STDOUT)
    command = [sys.executable, "-m", *module]
    ended = subprocess.run(command, cwd=ROOT, check=False, stdout=to, stderr=errors, text=True)
    output = ended.stdout if ended.returncode and not is_alone else ""
    return Ended(name, ended.returncode, time.monotonic() - start, output)


def run_in_virtualenv(arguments: list[str], *, yes: bool) -> int:
    """Create `.venv` if it is missing, and run this file in it."""
    if yes:
        system_packages.answer_yes()
    scripts = ROOT / ".venv" / ("Scripts" if os.name == "nt" else "bin")
    python = shutil.which("python", path=str(scripts))
    if python is None:
        announce("Creating the virtualenv .venv")
        create = [sys.executable, "-m", "venv", "--clear", str(ROOT / ".venv")]
        # Debian ships a part of `venv` as a separate package.
        package, purpose = f"{PYTHON}-venv", "install what creates a virtualenv"
        if subprocess.call(create) and not (
            system_packages.install(package, purpose=purpose) and not subprocess.call(create)
        ):
            sys.exit(f"Cannot create the virtualenv .venv. On Debian and Ubuntu: apt-get install {package}")
        python = str(scripts / "python")
    return subprocess.call([python, __file__, *arguments])


def install(group: str) -> None:
    """Install the app with its drivers and a dependency group, unless the same `pyproject.toml` is already installed.

    Args:
        group: `test`, or `dev`, which includes it.
    """
    wanted = hashlib.sha256(str(ROOT).encode() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    stamp = Path(sys.prefix) / "outbox-installed"
    installed = stamp.read_text() if stamp.exists() else ""
    if installed.startswith(wanted) and installed.endswith(("dev", group)):
        return
    announce("Installing the app, its drivers and the tools")
    install_build_tools()
    # Most modules are never imported, so pip compiles none.
    pip = [sys.executable, "-m", "pip", "install", "--no-compile"]
    # pip 25.1 is the first version with dependency groups.
    failed = subprocess.call([*pip, "--upgrade", "pip>=25.1"], cwd=ROOT) or subprocess.call(
        [*pip, "--editable", ".[all]", "--group", group], cwd=ROOT
    )
    if failed:
        sys.exit(
            "pip failed; its output is above. mysqlclient is compiled, and needs a C compiler, pkg-config, and the "
            "headers of Python and of the MariaDB or MySQL client.\n"
            f"On Debian and Ubuntu: apt-get install gcc pkg-config default-libmysqlclient-dev {PYTHON}-dev"
        )
    stamp.write_text(f"{wanted} {group}")


def install_build_tools() -> None:
    """Install the system packages that compile mysqlclient, as far as they are missing and this user may."""
    missing = [command for command in ("gcc", "pkg-config") if not shutil.which(command)]
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        missing.append(f"{PYTHON}-dev")
    clients = ("libmariadb", "mariadb", "mysqlclient")
    if "pkg-config" in missing or all(subprocess.call(["pkg-config", "--exists", client]) for client in clients):
        missing.append("default-libmysqlclient-dev")
    if missing:
        system_packages.install(*missing, purpose="compile mysqlclient")


def announce(text: str) -> None:
    """Print a headline."""
    print(f"\n== {text}")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
