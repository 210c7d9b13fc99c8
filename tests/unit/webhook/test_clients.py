# SPDX-License-Identifier: Apache-2.0
"""Who may have reviews answered, where clients have to show a certificate."""

import json
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aliquot_webhook import certs
from aliquot_webhook.runtime import may_ask
from aliquot_webhook.settings import Settings
from aliquot_webhook.tls import ServingContext
from tests.cluster import pki
from tests.unit.webhook.kit import container, pod, review
from tests.unit.webhook.test_review import Bed

NAME = "api-server"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Authorities `ours` and `theirs` with a certificate each, that of `ours` also for somebody else."""
    for authority in ("ours", "theirs"):
        identities = [pki.Identity(file="client", user=NAME), pki.Identity(file="other", user="other")]
        pki.create(tmp_path / authority, identities)
    return tmp_path


@pytest.fixture
def ask(folder: Path) -> Callable[..., bool]:
    """What the server thinks of a client with this certificate; SSLError or OSError if it ends the
    handshake."""
    serving = ServingContext(client_authority=(folder / "ours" / "ca.crt").read_text())
    bundle = certs.renewed(None, hosts=["localhost"], now=datetime.now(UTC))
    assert bundle is not None
    serving.use(bundle)

    def connect(certificate: str, *, names: tuple[str, ...] = (NAME,)) -> bool:
        settings = Settings(client_authority="given", client_names=names)
        client = ssl.create_default_context(cadata=bundle.authority.decode())
        if certificate:
            path = folder / certificate
            client.load_cert_chain(path.with_suffix(".crt"), path.with_suffix(".key"))
        verdict: list[bool] = []
        ours, theirs = socket.socketpair()

        def serve() -> None:
            try:
                with serving.context.wrap_socket(theirs, server_side=True) as server:
                    server.recv(1)
                    verdict.append(may_ask(settings)(server))
                    server.send(b"x")
            except OSError:
                theirs.close()

        thread = threading.Thread(target=serve)
        thread.start()
        ours.settimeout(10)
        try:
            with client.wrap_socket(ours, server_hostname="localhost") as connection:
                connection.send(b"x")
                if connection.recv(1) != b"x":
                    raise OSError("closed")
        finally:
            thread.join(10)
        return verdict[0]

    return connect


def test_only_named_clients_with_a_certificate_of_the_authority_may_ask(ask: Callable[..., bool]) -> None:
    assert ask("ours/client")
    assert not ask("")
    assert not ask("ours/other")
    assert ask("ours/other", names=())
    assert not ask("", names=())
    with pytest.raises(OSError):  # noqa: PT011 # by the handshake, or by what comes right after it
        ask("theirs/client")


def test_without_an_authority_anybody_may() -> None:
    assert may_ask(Settings())(None)
    assert not may_ask(Settings(client_authority="given"))(None)


def test_strangers_get_no_answer_and_probes_do() -> None:
    client = Bed(may_ask=lambda connection: False).client
    body = json.dumps(review(pod(container(vgpu="1"))))
    for path in ("/mutate", "/validate"):
        answer = client.post(path, data=body, content_type="application/json")
        assert (answer.status_code, answer.text) == (401, "want the client certificate of an API server\n")
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 200
