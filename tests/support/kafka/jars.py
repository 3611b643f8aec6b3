"""The programs of Apache Kafka: Java's archives, which Maven copies to a folder of this user's cache."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")

VERSION = re.findall("<kafka.version>(.+)</kafka.version>", POM.read_text())[0]

FOLDER = Path.home() / ".cache" / "django-outbox" / f"kafka-{VERSION}"

OLDEST_JAVA = 17

PATIENCE = 300
"""Seconds for the download, which takes about 10 with a good connection."""


def are_usable() -> bool:
    """Return whether brokers can be started."""
    return FOLDER.is_dir() and bool(shutil.which("java"))


def has_java() -> bool:
    """Return whether there is a Java for Kafka's brokers."""
    if not shutil.which("java"):
        return False
    shown = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', shown)
    return version is not None and int(version[1]) >= OLDEST_JAVA


def fill() -> str:
    """Fill the folder unless it is there; return why that is not possible, or nothing."""
    if not has_java():
        return f"Java {OLDEST_JAVA} or newer is not installed"
    if FOLDER.is_dir():
        return ""
    if not shutil.which("mvn"):
        return "Maven is not installed"
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as unfinished:
        output = Path(unfinished) / "jars"
        command = ["mvn", "--batch-mode", "--quiet", "--file", str(POM), f"-DoutputDirectory={output}"]
        try:
            ended = subprocess.run(
                [*command, "dependency:copy-dependencies"], capture_output=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return f"Maven did not end within {PATIENCE} s"
        if ended.returncode:
            return "Maven cannot download Kafka"
        # Another run may have been faster.
        if not FOLDER.exists():
            output.replace(FOLDER)
    return ""
