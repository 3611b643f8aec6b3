"""Prometheus on a free port of this machine, and its `promtool`."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.waiting import eventually

PATIENCE = 120
"""Seconds within which Prometheus must have done what is waited for."""


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. A missing one is a failure, because alerts would be untested."""
    path = shutil.which(name)
    assert path, f"{name} is missing. Run `python tests/run.py`, or install the Debian package prometheus."
    return path


def promtool(*arguments: str) -> str:
    """Run promtool, expect that it succeeds, and return what it printed."""
    command = [program("promtool"), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


class Prometheus:
    """A server with its data in a temporary folder.

    Args:
        folder: the temporary folder.
        targets: the paths that it scrapes, by their host and port.
        rules: the file with the alert rules.
    """

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: Path) -> None:
        scrapes = [
            {
                "job_name": target,
                "scrape_interval": "1s",
                "metrics_path": path,
                "static_configs": [{"targets": [target]}],
            }
            for target, path in targets.items()
        ]
        configuration = folder / "prometheus.yaml"
        configuration.write_text(
            yaml.safe_dump(
                {
                    "global": {"evaluation_interval": "1s"},
                    "scrape_configs": scrapes,
                    "rule_files": [str(rules)],
                }
            )
        )
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={configuration}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    def __enter__(self) -> "Prometheus":
        try:
            self._address = eventually(self._find_address, "Prometheus listens", seconds=PATIENCE)
            eventually(self._is_ready, "Prometheus is ready", seconds=PATIENCE)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response of the HTTP API."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the samples of an expression now."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def _find_address(self) -> str:
        listening = re.search(r'"Listening on" address=(\S+)', self._log.read_text(errors="replace"))
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        return listening[1] if listening else ""

    def _is_ready(self) -> bool:
        # It listens before it has loaded its rules, and refuses queries until then.
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=PATIENCE) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
