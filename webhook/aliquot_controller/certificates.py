# SPDX-License-Identifier: Apache-2.0
"""Renews the webhook's certificates and keeps `caBundle` of its configuration equal to their authority."""

import base64
import logging
from collections.abc import Callable

from aliquot_webhook.certs import Bundle
from aliquot_webhook.kube import JSON_PATCH
from aliquot_webhook.templates import Api
from aliquot_webhook.wire import JsonObject, dig, items, obj, text

logger = logging.getLogger(__name__)

_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class CertificateKeeper:
    """Brings the configuration in line with the Secret, whichever of them somebody changed."""

    def __init__(self, *, api: Api, current: Callable[[], Bundle], configuration: str) -> None:
        self._api = api
        self._current = current
        self._path = f"{_PATH}/{configuration}"

    def keep(self) -> bool:
        """Renew what is due, then correct the configuration; whether that was needed. Raises ApiError."""
        wanted = base64.b64encode(self._current().authority).decode()
        operations = _corrections(self._api.call("GET", self._path), wanted)
        if not operations:
            return False
        self._api.call("PATCH", self._path, body=operations, content_type=JSON_PATCH)
        logger.info("corrected caBundle", extra={"configuration": self._path.rsplit("/", 1)[-1]})
        return True


def _corrections(configuration: JsonObject, wanted: str) -> list[dict[str, object]]:
    operations: list[dict[str, object]] = []
    for index, webhook in enumerate(items(configuration.get("webhooks"))):
        if dig(webhook, "clientConfig", "caBundle") != wanted:
            # The list may have changed since it was read: `test` makes the patch fail then.
            name = text(obj(webhook).get("name"))
            operations += [
                {"op": "test", "path": f"/webhooks/{index}/name", "value": name},
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted},
            ]
    return operations
