# SPDX-License-Identifier: Apache-2.0
"""Certificates: what they are good for, when they are renewed, and that a renewal breaks nobody."""

import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from aliquot_webhook import certs
from aliquot_webhook.certs import Bundle
from aliquot_webhook.tls import ServingContext

HOSTS = ("aliquot-webhook.aliquot-system.svc", "127.0.0.1")
NOW = datetime.now(UTC)


def fresh(now: datetime = NOW) -> Bundle:
    bundle = certs.renewed(None, hosts=HOSTS, now=now)
    assert bundle is not None
    return bundle


def handshake(serving: ServingContext, authority: bytes, host: str = HOSTS[0]) -> bytes:
    """The certificate that a client who trusts `authority` gets from the server."""
    client = ssl.create_default_context(cadata=authority.decode())
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with serving.context.wrap_socket(theirs, server_side=True) as server:
                server.recv(1)
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    ours.settimeout(10)
    try:
        with client.wrap_socket(ours, server_hostname=host) as connection:
            connection.send(b"x")
            certificate = connection.getpeercert(binary_form=True)
    finally:
        ours.close()
        thread.join(10)
    assert certificate is not None
    return certificate


@pytest.mark.parametrize("host", HOSTS)
def test_a_client_that_trusts_the_authority_can_talk_to_every_host(host: str) -> None:
    serving, bundle = ServingContext(), fresh()
    serving.use(bundle)

    assert x509.load_der_x509_certificate(handshake(serving, bundle.authority, host))


def test_nobody_else_is_trusted() -> None:
    serving = ServingContext()
    serving.use(fresh())

    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving, fresh().authority)


def test_a_new_certificate_counts_for_the_next_connection() -> None:
    serving, first = ServingContext(), fresh()
    assert serving.use(first)
    assert not serving.use(first)
    later = NOW + timedelta(minutes=5)
    second = certs.renewed(replace(first, certificate=b"lost"), hosts=HOSTS, now=later)
    assert second is not None
    before = handshake(serving, first.authority)
    assert serving.use(second)

    assert handshake(serving, first.authority) != before


@pytest.mark.parametrize(
    ("age", "due"),
    [
        pytest.param(timedelta(), False, id="new"),
        pytest.param(timedelta(days=59), False, id="before two thirds of its life"),
        pytest.param(timedelta(days=61), True, id="after two thirds"),
        pytest.param(timedelta(days=91), True, id="expired"),
        pytest.param(-timedelta(days=1), True, id="made by a clock that is ahead"),
    ],
)
def test_the_serving_certificate_is_renewed_in_time(age: timedelta, due: bool) -> None:
    bundle = fresh()
    better = certs.renewed(bundle, hosts=HOSTS, now=NOW + age)

    assert (better is not None) is due
    if better is not None and age > timedelta():
        assert better.authority == bundle.authority
        assert certs.expiry(better) > NOW + age + timedelta(days=89)


def test_a_renewed_authority_and_the_old_one_verify_each_others_certificates() -> None:
    old = fresh(NOW - timedelta(days=3000))
    new = certs.renewed(old, hosts=HOSTS, now=NOW)
    assert new is not None
    assert new.authority != old.authority
    assert new.authority_key == old.authority_key
    serving = ServingContext()
    serving.use(new)
    handshake(serving, new.authority)
    handshake(serving, old.authority)


def test_other_hosts_make_a_new_certificate() -> None:
    better = certs.renewed(fresh(), hosts=(*HOSTS, "10.0.0.1"), now=NOW)

    assert better is not None
    serving = ServingContext()
    serving.use(better)
    handshake(serving, better.authority, "10.0.0.1")


def test_two_that_were_told_of_different_hosts_do_not_take_turns_for_ever() -> None:
    bundle, ours, theirs = fresh(), (*HOSTS, "ours"), (*HOSTS, "theirs")
    for hosts in (ours, theirs):
        better = certs.renewed(bundle, hosts=hosts, now=NOW)
        assert better is not None
        bundle = better
    assert certs.renewed(bundle, hosts=ours, now=NOW) is None
    assert certs.renewed(bundle, hosts=theirs, now=NOW) is None
    assert certs.renewed(bundle, hosts=HOSTS, now=NOW) is None

    later = certs.renewed(bundle, hosts=HOSTS, now=NOW + timedelta(days=80))
    assert later is not None
    serving = ServingContext()
    serving.use(later)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving, later.authority, "ours")


@pytest.mark.parametrize("field", ["authority", "authority_key", "certificate", "key"])
@pytest.mark.parametrize("value", [b"", b"garbage", fresh().key, fresh().certificate])
def test_a_damaged_bundle_is_repaired(field: str, value: bytes) -> None:
    better = certs.renewed(replace(fresh(), **{field: value}), hosts=HOSTS, now=NOW)

    assert better is not None
    serving = ServingContext()
    serving.use(better)
    handshake(serving, better.authority)


def test_keys_are_not_printed() -> None:
    assert "PRIVATE" not in repr(fresh())
