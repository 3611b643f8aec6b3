"""Programs for Java that tests start: Maven copies their archives to a folder of this user's cache."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

OLDEST_JAVA = 17

PATIENCE = 300
"""Seconds for a download, which takes about 10 with a good connection."""


class Program:
    """A program, whose archives and version a `pom.xml` names."""

    def __init__(self, name: str, pom: Path) -> None:
        self.name = name
        self._pom = pom
        (self.version,) = re.findall("<program.version>(.+)</program.version>", pom.read_text())
        self.folder = Path.home() / ".cache" / "django-outbox" / f"{name.lower()}-{self.version}"
        self.remedy = f"{name} is missing: install Java {OLDEST_JAVA} or newer and Maven, and run tests/run.py"

    @property
    def is_usable(self) -> bool:
        return self.folder.is_dir() and bool(shutil.which("java"))

    def command(self, main: str, *arguments: str | Path, options: tuple[str, ...] = ()) -> list[str | Path]:
        """Return the command that runs one of its classes, with options for Java."""
        # Tests need the processors, too: it starts in half the time.
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        return ["java", *quick, *options, "-cp", f"{self.folder}{os.sep}*", main, *arguments]

    def fill(self) -> str:
        """Fill the folder unless it is there; return why that is not possible, or nothing."""
        if not _has_java():
            return f"Java {OLDEST_JAVA} or newer is not installed"
        if self.folder.is_dir():
            return ""
        if not shutil.which("mvn"):
            return "Maven is not installed"
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as unfinished:
            output = Path(unfinished) / "jars"
            command = ["mvn", "--batch-mode", "--quiet", "--file", str(self._pom), f"-DoutputDirectory={output}"]
            try:
                ended = subprocess.run(
                    [*command, "dependency:copy-dependencies"], capture_output=True, timeout=PATIENCE, check=False
                )
            except subprocess.TimeoutExpired:
                return f"Maven did not end within {PATIENCE} s"
            if ended.returncode:
                return f"Maven cannot download {self.name}"
            # Another run may have been faster.
            if not self.folder.exists():
                output.replace(self.folder)
        return ""


def _has_java() -> bool:
    if not shutil.which("java"):
        return False
    shown = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', shown)
    return version is not None and int(version[1]) >= OLDEST_JAVA


_HERE = Path(__file__).parent

KAFKA = Program("Kafka", _HERE / "kafka" / "pom.xml")
ELASTICMQ = Program("ElasticMQ", _HERE / "aws" / "pom.xml")
DEBEZIUM = Program("Debezium", _HERE / "debezium" / "pom.xml")
