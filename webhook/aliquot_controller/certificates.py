# SPDX-License-Identifier: Apache-2.0
"""Renews the webhook's certificates and keeps `caBundle` of its configurations in line with their
authority."""

import base64
import binascii
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_webhook import certs
from aliquot_webhook.certs import Bundle
from aliquot_webhook.kube import JSON_PATCH, Api
from aliquot_webhook.trust import CONFIGURATIONS

logger = logging.getLogger(__name__)


class CertificateKeeper:
    """Brings the configurations in line with the Secret, whichever of them somebody changed."""

    def __init__(
        self,
        *,
        api: Api,
        current: Callable[[], Bundle],
        configurations: Sequence[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._current = current
        self._paths = [f"{CONFIGURATIONS}/{each}" for each in configurations]
        self._now = now

    def keep(self) -> bool:
        """Renew what is due, then correct the configurations; whether that was needed. Raises ApiError."""
        authority = self._current().authority
        corrected = [path for path in self._paths if self._correct(path, authority)]
        for path in corrected:
            logger.info("corrected caBundle", extra={"configuration": path.removeprefix(CONFIGURATIONS)})
        return bool(corrected)

    def _correct(self, path: str, authority: bytes) -> bool:
        operations: list[dict[str, object]] = []
        for index, webhook in enumerate(items(self._api.call("GET", path).get("webhooks"))):
            present = _bundle(obj(webhook))
            wanted = certs.trusted(authority, present, now=self._now())
            if present != wanted:
                # The list may have changed since it was read: `test` makes the patch fail then.
                name = text(obj(webhook).get("name"))
                value = base64.b64encode(wanted).decode()
                operations += [
                    {"op": "test", "path": f"/webhooks/{index}/name", "value": name},
                    {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": value},
                ]
        if operations:
            self._api.call("PATCH", path, body=operations, content_type=JSON_PATCH)
        return bool(operations)


def _bundle(webhook: JsonObject) -> bytes:
    try:
        return base64.b64decode(text(dig(webhook, "clientConfig", "caBundle")), validate=True)
    except binascii.Error:
        return b""
