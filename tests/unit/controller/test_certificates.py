# SPDX-License-Identifier: Apache-2.0
"""The configurations' caBundle follows the Secret, with overlap."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aliquot_controller.certificates import CertificateKeeper
from aliquot_webhook import certs
from aliquot_webhook.certs import Bundle
from aliquot_webhook.kube import ApiError
from aliquot_webhook.trust import Trust
from tests.unit.webhook.fake_api import FakeApi

KIND = "mutatingwebhookconfigurations/aliquot-webhook"
PATH = f"/apis/admissionregistration.k8s.io/v1/{KIND}"
NOW = datetime.now(UTC)


def fresh(now: datetime = NOW) -> Bundle:
    bundle = certs.renewed(None, hosts=["a.example"], now=now)
    assert bundle is not None
    return bundle


def encoded(*authorities: bytes) -> str:
    return base64.b64encode(b"".join(authorities)).decode()


def configure(api: FakeApi, *bundles: str | None) -> None:
    webhooks: list[dict[str, Any]] = []
    for index, bundle in enumerate(bundles):
        config: dict[str, Any] = {"service": {"name": "aliquot-webhook"}}
        if bundle is not None:
            config["caBundle"] = bundle
        webhooks.append({"name": f"w{index}", "clientConfig": config})
    api.put(PATH, {"webhooks": webhooks})


def bundles(api: FakeApi) -> list[str]:
    return [each["clientConfig"]["caBundle"] for each in api.objects[PATH]["webhooks"]]


def keeper(api: FakeApi, bundle: Bundle, now: datetime = NOW) -> CertificateKeeper:
    return CertificateKeeper(api=api, current=lambda: bundle, configurations=[KIND], now=lambda: now)


def test_a_missing_or_wrong_bundle_is_put_right_once() -> None:
    api, ours = FakeApi(), fresh()
    configure(api, None, encoded(ours.authority), "b3RoZXI=", "%")

    assert keeper(api, ours).keep()
    assert bundles(api) == [encoded(ours.authority)] * 4
    assert api.objects[PATH]["webhooks"][0]["clientConfig"]["service"] == {"name": "aliquot-webhook"}
    assert not keeper(api, ours).keep()
    assert len(api.writes()) == 1


def test_a_new_authority_is_trusted_beside_the_old_one_for_a_while() -> None:
    api, old, new = FakeApi(), fresh(NOW - timedelta(days=9)), fresh()
    configure(api, encoded(old.authority))
    assert keeper(api, new).keep()
    assert bundles(api) == [encoded(new.authority, old.authority)]
    assert not keeper(api, new).keep()

    assert keeper(api, new, NOW + timedelta(hours=2)).keep()
    assert bundles(api) == [encoded(new.authority)]


def test_an_old_authority_that_has_ended_is_not_kept_and_a_flood_of_them_neither() -> None:
    api, new = FakeApi(), fresh()
    ended = fresh(NOW - timedelta(days=4000)).authority
    many = [fresh().authority for _ in range(5)]
    configure(api, encoded(ended), encoded(*many))
    keeper(api, new).keep()

    assert bundles(api) == [encoded(new.authority), encoded(new.authority, *many[:2])]


def test_a_missing_configuration_is_an_error_to_try_again_after() -> None:
    with pytest.raises(ApiError):
        keeper(FakeApi(), fresh()).keep()


def test_a_certificate_of_a_new_authority_is_served_once_the_server_trusts_it() -> None:
    api, old, new = FakeApi(), fresh(), fresh()
    clock = [0.0]
    trust = Trust(api=api, configuration="aliquot-webhook", clock=lambda: clock[0])
    configure(api, encoded(old.authority), encoded(old.authority))
    assert trust.may_serve(new, served_authority=b"")  # nothing is served yet
    assert trust.may_serve(old, served_authority=old.authority)
    assert not trust.may_serve(new, served_authority=old.authority)

    keeper(api, new).keep()
    assert trust.may_serve(new, served_authority=old.authority)


def test_a_replica_is_ready_once_the_server_is_told_of_its_authority_or_there_is_no_telling() -> None:
    api, ours, clock = FakeApi(), fresh(), [0.0]

    def trust() -> Trust:
        return Trust(api=api, configuration="aliquot-webhook", clock=lambda: clock[0])

    configure(api, None)
    first = trust()
    assert not first.is_told(ours.authority)
    assert first.is_told(b"")  # somebody else renews it
    keeper(api, ours).keep()
    assert first.is_told(ours.authority)

    late = trust()
    assert not late.is_told(fresh().authority)
    clock[0] = 61.0
    assert late.is_told(fresh().authority)
    api.forbidden.add(("GET", PATH))
    assert trust().is_told(fresh().authority)
    api.down = True
    assert not trust().is_told(ours.authority)


def test_one_that_cannot_find_out_waits_a_minute_and_not_for_ever() -> None:
    api, clock = FakeApi(), [0.0]
    trust = Trust(api=api, configuration="aliquot-webhook", clock=lambda: clock[0])
    api.down = True
    new = fresh()
    assert not trust.may_serve(new, served_authority=b"old")
    clock[0] = 61.0
    assert trust.may_serve(new, served_authority=b"old")
