"""Set up everything that the tests need and run them: `python tests/run.py [arguments of pytest]`.

Without arguments it checks style and types, runs all tests and builds the documentation. With arguments it goes
straight to pytest: `python tests/run.py -k enqueue`.

It needs Python 3.10 or newer and nothing else. Outside a virtualenv it makes and uses `.venv` beside `pyproject.toml`.
Where the servers come from is told in `tests/servers.py`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if sys.version_info < (3, 10):  # noqa: UP036 - whoever has an older one is told so
    sys.exit(f"Python 3.10 or newer is needed; this is {sys.version.split()[0]}.")

from tests import servers, system_packages  # noqa: E402 - an older Python could not read them

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def main(arguments: list[str]) -> int:
    """Set up, run, and return the exit code of the first step that failed, or 0."""
    if sys.prefix == sys.base_prefix:
        return run_in_virtualenv(arguments)
    install()
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome")):
        announce("Installing a browser for the tests of the admin")
        if not system_packages.install("chromium", "chromium-driver"):
            print("No browser found and none could be installed: Selenium will try to fetch one.")
    announce("Looking for the servers")
    try:
        os.environ.update(servers.find_all())
    except servers.ServerMissing as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        return run_steps(steps(arguments, Path(scratch)))


def steps(arguments: list[str], scratch: Path) -> dict[str, list[str]]:
    """Return what is to be run: the name of each step with the arguments of `python -m`."""
    if arguments:
        return {"pytest": ["pytest", *arguments]}
    found = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "mypy": ["mypy"],
        "pytest": ["pytest"],
    }
    if (ROOT / "docs" / "conf.py").exists():
        found["docs"] = ["sphinx", "-W", "-q", "--keep-going", "docs", str(scratch / "html")]
    return found


def run_steps(found: dict[str, list[str]]) -> int:
    """Run every step, tell how each one ended, and return the exit code of the first that failed."""
    results, code = [], 0
    for name, module in found.items():
        announce(name)
        start = time.monotonic()
        ended = subprocess.call([sys.executable, "-m", *module], cwd=ROOT)
        results.append(f"{name} {f'FAILED ({ended})' if ended else 'ok'} in {time.monotonic() - start:.0f} s")
        code = code or ended
    announce(f"Ran with {PYTHON}: {', '.join(results)}")
    return code


def run_in_virtualenv(arguments: list[str]) -> int:
    """Make `.venv` if there is none, and run this file again in it."""
    scripts = ROOT / ".venv" / ("Scripts" if os.name == "nt" else "bin")
    python = shutil.which("python", path=str(scripts))
    if python is None:
        announce("Making the virtualenv .venv")
        make = [sys.executable, "-m", "venv", "--clear", str(ROOT / ".venv")]
        # Debian keeps a part of `venv` in a package of its own.
        if subprocess.call(make) and not (system_packages.install(f"{PYTHON}-venv") and not subprocess.call(make)):
            sys.exit(f"The virtualenv could not be made. On Debian and Ubuntu: apt-get install {PYTHON}-venv.")
        python = str(scripts / "python")
    return subprocess.call([python, __file__, *arguments])


def install() -> None:
    """Install the app with its drivers and all tools, unless that was done with the same `pyproject.toml`."""
    wanted = hashlib.sha256(str(ROOT).encode() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    stamp = Path(sys.prefix) / "outbox-installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    announce("Installing the app, its drivers and the tools")
    install_build_needs()
    pip = [sys.executable, "-m", "pip", "install"]
    # 25.1 is the first pip that knows dependency groups.
    failed = subprocess.call([*pip, "--upgrade", "pip>=25.1"], cwd=ROOT) or subprocess.call(
        [*pip, "--editable", ".[all]", "--group", "dev"], cwd=ROOT
    )
    if failed:
        sys.exit(
            "pip failed, see above. mysqlclient is compiled: it needs a C compiler, pkg-config, the headers of Python "
            "and those of the MariaDB or MySQL client.\n"
            f"On Debian and Ubuntu: apt-get install gcc pkg-config default-libmysqlclient-dev {PYTHON}-dev."
        )
    stamp.write_text(wanted)


def install_build_needs() -> None:
    """Install what compiling mysqlclient takes, as far as it is missing and the system's package manager may."""
    missing = [command for command in ("gcc", "pkg-config") if not shutil.which(command)]
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        missing.append(f"{PYTHON}-dev")
    clients = ("libmariadb", "mariadb", "mysqlclient")
    if "pkg-config" in missing or all(subprocess.call(["pkg-config", "--exists", client]) for client in clients):
        missing.append("default-libmysqlclient-dev")
    if missing:
        system_packages.install(*missing)


def announce(text: str) -> None:
    """Print a headline."""
    print(f"\n== {text}")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1:]))
