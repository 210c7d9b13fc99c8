# SPDX-License-Identifier: Apache-2.0
"""The Secret that replicas share."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aliquot_webhook.certs import Bundle
from aliquot_webhook.kube import ApiError
from aliquot_webhook.tls import CertificateFolder, CertificateStore, ServingContext
from tests.unit.webhook.fake_api import FakeApi

COLLECTION = "/api/v1/namespaces/aliquot-system/secrets"
PATH = f"{COLLECTION}/aliquot-webhook-tls"


def store(api: FakeApi, *, days: int = 0) -> CertificateStore:
    return CertificateStore(
        api=api,
        namespace="aliquot-system",
        secret="aliquot-webhook-tls",
        hosts=["a.example"],
        now=lambda: datetime.now(UTC) + timedelta(days=days),
    )


def test_the_first_one_makes_it_and_everybody_takes_it() -> None:
    api = FakeApi()
    first = store(api).current()

    assert store(api).current() == first
    assert api.writes() == [("POST", COLLECTION)]
    data = api.objects[PATH]["data"]
    assert base64.b64decode(data["ca.crt"]) == first.authority
    assert base64.b64decode(data["tls.crt"]) == first.certificate
    assert api.objects[PATH]["type"] == "kubernetes.io/tls"


def test_who_comes_second_takes_what_the_winner_wrote() -> None:
    api = FakeApi()
    others: list[Bundle] = []
    original = api.call

    def call(method: str, path: str, **rest: object) -> object:
        if method == "POST" and not others:
            others.append(Bundle(b"", b"", b"", b""))  # stops the recursion
            others[0] = store(api).current()
        return original(method, path, **rest)  # type: ignore[arg-type] # passed through

    api.call = call  # type: ignore[assignment, method-assign] # another replica in between
    assert store(api).current() == others[0]


def test_an_old_one_is_renewed_in_place() -> None:
    api = FakeApi()
    old = store(api).current()
    api.objects[PATH]["metadata"]["labels"] = {"kept": "yes"}
    new = store(api, days=80).current()

    assert new.authority == old.authority
    assert new.certificate != old.certificate
    assert api.objects[PATH]["metadata"]["labels"] == {"kept": "yes"}


@pytest.mark.parametrize("data", [{}, {"tls.crt": "%"}, {"tls.crt": "", "ca.key": 5}])
def test_an_unreadable_one_is_replaced(data: dict[str, object]) -> None:
    api = FakeApi()
    api.put(PATH, {"metadata": {"name": "aliquot-webhook-tls"}, "data": data})

    assert b"BEGIN CERTIFICATE" in store(api).current().authority
    assert store(api).current() == store(api).current()


def test_a_secret_that_is_lost_comes_back_as_it_was() -> None:
    api = FakeApi()
    replica = store(api)
    before = replica.current()
    del api.objects[PATH]

    assert replica.current() == before
    assert store(api).current() == before


def test_a_certificate_from_the_future_is_replaced() -> None:
    """A replica whose clock is ahead has made it: the API server would not accept it yet."""
    api = FakeApi()
    ahead = store(api, days=1).current()
    assert store(api).current().certificate != ahead.certificate
    assert store(api, days=1).current() == store(api).current()


def test_an_expired_one_is_replaced() -> None:
    api = FakeApi()
    old = store(api, days=-400).current()
    assert store(api).current().certificate != old.certificate
    assert store(api).current().authority == old.authority


def test_a_folder_that_somebody_else_renews(tmp_path: Path) -> None:
    made = store(FakeApi()).current()
    folder = CertificateFolder(folder=tmp_path)
    with pytest.raises(FileNotFoundError):
        folder.current()
    (tmp_path / "tls.crt").write_bytes(made.certificate)
    (tmp_path / "tls.key").write_bytes(made.key)
    serving = ServingContext()
    assert serving.use(folder.current())
    assert not serving.use(folder.current())

    (tmp_path / "tls.key").write_bytes(store(FakeApi()).current().key)  # half of a renewal
    with pytest.raises(ssl.SSLError):
        serving.use(folder.current())
    assert serving.loaded


def test_a_missing_permission_is_an_error() -> None:
    api = FakeApi()
    api.forbidden.add(("GET", "secrets"))

    with pytest.raises(ApiError, match="forbidden"):
        store(api).current()
