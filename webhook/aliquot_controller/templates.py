# SPDX-License-Identifier: Apache-2.0
"""Deletes our ResourceClaimTemplates that no pod names and whose `keep-until` is over.

This is the deleting half of the protocol that `aliquot_webhook.templates` writes down. The order here is
its part: read the template, then list the pods, then delete exactly the version that was read. Several
controllers at once do no harm.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from aliquot_api.wire import JsonObject, dig, items, obj, only, text
from aliquot_webhook.kube import ApiError, ListApi
from aliquot_webhook.templates import ROOT, SELECTOR, collection, keep_until, parse_timestamp

logger = logging.getLogger(__name__)


_UNSTAMPED_FOR: Final = timedelta(hours=1)
"""How long a template stays whose stamp somebody has spoilt."""


class TemplateCollector:
    """Finds and deletes unused templates."""

    def __init__(
        self,
        *,
        api: ListApi,
        on_delete: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._on_delete = on_delete
        self._now = now

    def collect(self) -> int:
        """Delete what is due now; how many that were. Raises ApiError if a list cannot be read."""
        path = f"{ROOT}/resourceclaimtemplates"
        templates, _ = self._api.list_all(path, {"labelSelector": SELECTOR}, self._due)
        due: dict[str, list[JsonObject]] = {}
        for template in templates:
            due.setdefault(text(dig(template, "metadata", "namespace")), []).append(template)
        deleted = 0
        for namespace, candidates in sorted(due.items()):
            # After the templates were read: a pod admitted with one of them is in this list by now.
            pods, _ = self._api.list_all(f"/api/v1/namespaces/{namespace}/pods", {}, _claims)
            used = _used(pods)
            for template in candidates:
                if text(dig(template, "metadata", "name")) not in used:
                    deleted += self._delete(namespace, template)
        return deleted

    def _due(self, template: JsonObject) -> JsonObject | None:
        return template if _stays_until(template) < self._now() else None

    def _delete(self, namespace: str, template: JsonObject) -> int:
        metadata = obj(template.get("metadata"))
        name = text(metadata.get("name"))
        preconditions = {
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
        try:
            self._api.call(
                "DELETE",
                f"{collection(namespace)}/{name}",
                body={"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions},
            )
        except ApiError as error:
            level = logging.DEBUG if error.status in (404, 409) else logging.WARNING
            logger.log(
                level,
                "template stays",
                extra={"namespace": namespace, "template": name, "error": error.message},
            )
            return 0
        self._on_delete()
        logger.info("deleted unused template", extra={"namespace": namespace, "template": name})
        return 1


def _stays_until(template: JsonObject) -> datetime:
    stated = keep_until(template)
    if stated is not None:
        return stated
    created = parse_timestamp(dig(template, "metadata", "creationTimestamp"))
    return (created or datetime.fromtimestamp(0, UTC)) + _UNSTAMPED_FOR


def _claims(pod: JsonObject) -> JsonObject | None:
    """Which claims a pod has."""
    return only(pod, spec=("resourceClaims",)) if dig(pod, "spec", "resourceClaims") else None


def _used(pods: Iterable[JsonObject]) -> set[str]:
    """Names of the templates that these pods name."""
    return {
        text(obj(claim).get("resourceClaimTemplateName"))
        for pod in pods
        for claim in items(dig(pod, "spec", "resourceClaims"))
    }
