# SPDX-License-Identifier: Apache-2.0
"""The real server process on loopback: TLS, kept-alive connections, clients that are slow, and its end."""

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aliquot_webhook.app import MAX_BODY_BYTES
from aliquot_webhook.serve import GRACE_S
from aliquot_webhook.tls import REQUEST_S, SILENCE_S
from tests.unit.webhook.kit import container, pod, review
from tests.unit.webhook.service import HOST

BODY = json.dumps(review(pod(container(vgpu="1", gpumem="8000"))))
HEADERS = {"Content-Type": "application/json"}
DEADLINE_S = 30


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for `condition`, at most until the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Running:
    """A server process."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server((HOST, 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "tests.unit.webhook.service", str(self.port), str(folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually((folder / "ca.crt").exists, "no certificate")

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return http.client.HTTPSConnection(HOST, self.port, context=context, timeout=DEADLINE_S)

    def memory_bytes(self) -> int:
        """Of the process and its worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        statms = [Path(f"/proc/{pid}/statm").read_text() for pid in (self.process.pid, *children)]
        return sum(int(statm.split()[1]) for statm in statms) * 4096

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


def ask(connection: http.client.HTTPSConnection) -> bool:
    connection.request("POST", "/mutate", body=BODY, headers=HEADERS)
    answer = connection.getresponse()
    allowed: bool = json.loads(answer.read())["response"]["allowed"]
    return allowed


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    server = Running(tmp_path)
    yield server
    server.process.kill()
    server.process.wait(DEADLINE_S)
    assert "Traceback" not in server.log.read_text()


def test_one_connection_serves_many_reviews(running: Running) -> None:
    connection = running.connect()
    assert ask(connection)
    first = connection.sock
    for _ in range(20):
        assert ask(connection)
    assert connection.sock is first
    connection.close()


def test_silent_clients_hold_up_nobody(running: Running) -> None:
    silent = [socket.create_connection((HOST, running.port)) for _ in range(200)]
    stuck = []
    for _ in range(5):  # more than there are threads, each in the middle of a request
        connection = running.connect()
        connection.connect()
        connection.sock.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n")
        stuck.append(connection)
    refused = []
    for _ in range(5):  # each gets its answer and does not close
        client = socket.create_connection((HOST, running.port))
        client.sendall(b"no TLS at all")
        refused.append(client)
    patient = running.connect()
    started = time.monotonic()
    assert ask(patient)
    assert time.monotonic() - started < 3 * SILENCE_S
    for connection in (*stuck, patient):
        connection.close()
    for client in (*silent, *refused):
        client.close()


def test_a_connection_that_is_kept_for_later_holds_up_nobody_and_can_be_used(running: Running) -> None:
    """An API server opens more than it needs, and asks on them when it does."""
    spare = [running.connect() for _ in range(20)]  # more than there are threads
    for connection in spare:
        connection.connect()
    patient = running.connect()
    started = time.monotonic()
    assert ask(patient)
    assert time.monotonic() - started < 3 * SILENCE_S
    # Longer than a client may be silent within a request.
    eventually(lambda: ask(patient) and time.monotonic() > started + SILENCE_S + 1, "time does not go by")
    assert all(ask(connection) for connection in spare)
    for connection in (*spare, patient):
        connection.close()


def test_a_dripping_client_is_cut_off_in_the_end_and_holds_up_nobody(running: Running) -> None:
    """One byte whenever the server's patience for silence is about to end."""
    dripping = []
    for _ in range(5):  # more than there are threads
        connection = running.connect()
        connection.connect()
        connection.sock.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        dripping.append(connection)
    cut: set[http.client.HTTPSConnection] = set()

    def drip() -> bool:
        for connection in dripping:
            try:
                connection.sock.sendall(b" ")
                connection.sock.settimeout(0.1)
                if connection.sock.recv(1) == b"":
                    cut.add(connection)
            except TimeoutError:
                pass
            except OSError:
                cut.add(connection)
        return len(cut) == len(dripping)

    patient = running.connect()
    started = time.monotonic()
    eventually(drip, "they are still held")
    assert time.monotonic() - started < 3 * REQUEST_S  # two rounds of threads
    assert ask(patient)
    for connection in (*dripping, patient):
        connection.close()


def test_thousands_of_idle_connections_keep_nobody_out_and_cost_little(running: Running) -> None:
    before = running.memory_bytes()
    idle = [socket.create_connection((HOST, running.port)) for _ in range(2000)]
    shaken: list[http.client.HTTPSConnection] = []
    for _ in range(20):
        connection = running.connect()
        connection.connect()
        shaken.append(connection)
    patient = running.connect()
    for _ in range(5):
        assert ask(patient)
    assert running.memory_bytes() - before < 100 << 20
    for connection in (*shaken, patient):
        connection.close()
    for client in idle:
        client.close()


def test_a_renewed_certificate_is_served_and_open_connections_stay(running: Running) -> None:
    connection = running.connect()
    assert ask(connection)
    old = (running.folder / "ca.crt").read_bytes()
    (running.folder / "renew").touch()
    eventually(lambda: (running.folder / "ca.crt").read_bytes() != old, "no renewal")

    fresh = running.connect()
    assert ask(fresh)
    assert ask(connection)
    fresh.close()
    connection.close()


def test_plain_http_and_nonsense_end_the_connection_only(running: Running) -> None:
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 200):
        with socket.create_connection((HOST, running.port), timeout=DEADLINE_S) as client:
            client.sendall(nonsense)
            assert b"200" not in client.recv(100)
    connection = running.connect()
    assert ask(connection)
    connection.close()


def test_sigterm_ends_it_in_order(running: Running) -> None:
    connection = running.connect()
    assert ask(connection)
    connection.close()
    spare = running.connect()
    spare.connect()
    assert ask(running.connect())  # so the spare one has been seen

    started = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - started < GRACE_S
    spare.close()
    assert (running.folder / "stopped").exists()


def test_a_flood_is_cut_off(running: Running) -> None:
    exact = b" " * (MAX_BODY_BYTES + 1)
    pieces = (b" " * 65536 for _ in range(MAX_BODY_BYTES // 65536 + 1))  # of unknown length: chunked
    for body, chunked in ((exact, False), (pieces, True)):
        connection = running.connect()
        # The answer comes while the client still sends: it may find the connection closed before it can read.
        with suppress(ssl.SSLEOFError, ConnectionError, http.client.RemoteDisconnected):
            connection.request("POST", "/mutate", body=body, headers=HEADERS, encode_chunked=chunked)
            assert connection.getresponse().status == 413
        connection.close()
    after = running.connect()
    after.request("GET", "/healthz")
    assert after.getresponse().status == 200
    after.close()
