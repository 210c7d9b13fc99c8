# SPDX-License-Identifier: Apache-2.0
"""Decides when a certificate of a new authority may be served: once the API server trusts that authority."""

import base64
import binascii
import time
from collections.abc import Callable
from typing import Final

from aliquot_api.wire import dig, items, text
from aliquot_webhook.certs import Bundle
from aliquot_webhook.kube import Api, ApiError

CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1"
_PATIENCE_S: Final = 60.0
"""Somebody else may write caBundle, and keep it to himself."""


class Trust:
    """Looks into our webhook configuration."""

    def __init__(self, *, api: Api, configuration: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._path = f"{CONFIGURATIONS}/mutatingwebhookconfigurations/{configuration}"
        self._clock = clock
        self._waiting_for = b""
        self._since = 0.0
        self._asked_at_s: float | None = None

    def may_serve(self, bundle: Bundle, *, served_authority: bytes) -> bool:
        """Whether to change over to `bundle` now."""
        if served_authority in (b"", bundle.authority):
            return True
        if bundle.authority != self._waiting_for:
            self._waiting_for, self._since = bundle.authority, self._clock()
        return self._clock() - self._since > _PATIENCE_S or self._trusts(bundle.authority)

    def is_told(self, authority: bytes) -> bool:
        """Whether the API server knows `authority` by now, so that it can call us; or there is no telling: we
        may not look, or a minute has gone."""
        if self._asked_at_s is None:
            self._asked_at_s = self._clock()
        if not authority or self._clock() - self._asked_at_s > _PATIENCE_S:
            return True
        try:
            return self._is_written(authority)
        except ApiError as error:
            return 400 <= error.status < 500

    def _trusts(self, authority: bytes) -> bool:
        try:
            return self._is_written(authority)
        except ApiError:
            return False

    def _is_written(self, authority: bytes) -> bool:
        webhooks = items(self._api.call("GET", self._path).get("webhooks"))
        try:
            bundles = [base64.b64decode(text(dig(each, "clientConfig", "caBundle"))) for each in webhooks]
        except binascii.Error:
            return False
        return bool(bundles) and all(authority in bundle for bundle in bundles)
