# SPDX-License-Identifier: Apache-2.0
"""The configuration's caBundle follows the Secret."""

import base64
from typing import Any

import pytest

from aliquot_controller.certificates import CertificateKeeper
from aliquot_webhook.certs import Bundle
from aliquot_webhook.kube import ApiError
from tests.unit.webhook.fake_api import FakeApi

PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot-webhook"
BUNDLE = Bundle(authority=b"ours", authority_key=b"", certificate=b"", key=b"")


def configure(api: FakeApi, *bundles: str | None) -> None:
    webhooks: list[dict[str, Any]] = []
    for index, bundle in enumerate(bundles):
        config: dict[str, Any] = {"service": {"name": "aliquot-webhook"}}
        if bundle is not None:
            config["caBundle"] = bundle
        webhooks.append({"name": f"w{index}", "clientConfig": config})
    api.put(PATH, {"webhooks": webhooks})


def keeper(api: FakeApi) -> CertificateKeeper:
    return CertificateKeeper(api=api, current=lambda: BUNDLE, configuration="aliquot-webhook")


def test_a_missing_or_wrong_bundle_is_put_right_once() -> None:
    api = FakeApi()
    ours = base64.b64encode(b"ours").decode()
    configure(api, None, ours, "b3RoZXI=")

    assert keeper(api).keep()
    assert [each["clientConfig"]["caBundle"] for each in api.objects[PATH]["webhooks"]] == [ours] * 3
    assert api.objects[PATH]["webhooks"][0]["clientConfig"]["service"] == {"name": "aliquot-webhook"}
    assert not keeper(api).keep()
    assert len(api.writes()) == 1


def test_a_missing_configuration_is_an_error_to_try_again_after() -> None:
    with pytest.raises(ApiError):
        keeper(FakeApi()).keep()
