# SPDX-License-Identifier: Apache-2.0
"""Events on claims: what the controller did to them, for those who look there."""

import logging
from datetime import UTC, datetime

from aliquot_api.wire import JsonObject, dig, text
from aliquot_controller.settings import NAME
from aliquot_webhook.kube import Api, ApiError
from aliquot_webhook.templates import timestamp

logger = logging.getLogger(__name__)


def record(api: Api, claim: JsonObject, *, reason: str, message: str) -> None:
    """Write an event about `claim`. One that cannot be written is not worth a failure."""
    namespace, name = (text(dig(claim, "metadata", key)) for key in ("namespace", "name"))
    now = timestamp(datetime.now(UTC))
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": text(claim.get("apiVersion")) or "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "namespace": namespace,
            "name": name,
            "uid": dig(claim, "metadata", "uid"),
        },
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": NAME},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        api.call("POST", f"/api/v1/namespaces/{namespace}/events", body=event)
    except ApiError as error:
        logger.warning("event is lost", extra={"claim": name, "error": error.message})
