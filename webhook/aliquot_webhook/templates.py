# SPDX-License-Identifier: Apache-2.0
"""Makes sure that the template a pod names exists, and stays, before the pod is admitted.

The protocol between this module, which creates and refreshes, and the controller, which deletes, has no
lock and no shared clock beyond rough agreement. Let g be the grace period, `last-used` the annotation.

- A pod is answered with template T only if (a) T stands in our copy with last-used younger than g/2, or
  (b) this admission has created T, or (c) has refreshed its last-used; the write of (b) and (c) has
  succeeded before we answer. A refresh that finds nothing (404) becomes a create, a create that finds
  something (409) becomes a refresh.
- The controller deletes T only if, in one freshly read version of it, last-used is older than g, and a
  list of the namespace's pods that was read after that shows none that names T; and it deletes that
  version only (preconditions uid and resourceVersion).

Why no admitted pod is stranded: let the pod be answered at time a, and T be deleted in a version read
with last-used t < now - g. In case (a) t' > a - g/2 for the version that we saw, and last-used only
grows, so a < now - g/2: the pod's creation, which ends within the API server's request time-out (60 s)
after a, is over. It shows in the list of pods, or was refused, or has come and gone. That also covers a
copy of ours that lags behind. In cases (b) and (c) our write came either before the controller's read, and
then the same holds, or after it, and then the precondition fails, or after the deletion, and then it has
made a new T. What is needed: the same g on both
sides, and g/2 above 60 s plus the clocks' difference. Deletion by anybody else is seen
by the watch; a pod admitted in that moment waits, until the next pod of its kind brings T back.

Dry-run writes nothing. A namesake with other content is refused, never used.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from aliquot_api import names
from aliquot_webhook.claims import ClaimTemplate, covers
from aliquot_webhook.kube import MERGE_PATCH, ApiError, Method
from aliquot_webhook.wire import JsonObject, dig, obj, text

ROOT: Final = f"/apis/{names.RESOURCE_GROUP}/{names.RESOURCE_VERSION}"
SELECTOR: Final = f"{names.MANAGED_LABEL}=true"
_WAIT_S: Final = 4.0
"""Less than the time-out of the webhook configuration, so that the author gets our words."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class TemplateUnavailable(Exception):
    """The template cannot be had, so the pod must not be admitted; the text says why."""


class Api(Protocol):
    """The part of the API that templates need."""

    def call(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | Sequence[object] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        """One request."""


@dataclass(frozen=True, slots=True)
class _Known:
    spec: object
    last_used: datetime


def collection(namespace: str) -> str:
    """Path of the templates of a namespace."""
    return f"{ROOT}/namespaces/{namespace}/resourceclaimtemplates"


def last_used(template: JsonObject) -> datetime:
    """When an admission last named the template; its creation if that is not written, or not readable."""
    for stamp in (
        obj(dig(template, "metadata", "annotations")).get(names.LAST_USED_ANNOTATION),
        dig(template, "metadata", "creationTimestamp"),
    ):
        try:
            return datetime.fromisoformat(text(stamp)).astimezone(UTC)
        except (ValueError, OverflowError):
            continue
    return _EPOCH


def timestamp(moment: datetime) -> str:
    """As Kubernetes writes times: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Templates:
    """Knows the templates of all namespaces (as a sink of their watch) and adds what is missing."""

    def __init__(
        self,
        *,
        api: Api,
        grace_s: float,
        on_write: Callable[[str], None] = lambda kind: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._refresh_after = timedelta(seconds=grace_s / 2)
        self._on_write = on_write
        self._now = now
        self._known: dict[tuple[str, str], _Known] = {}
        self._known_lock = threading.Lock()
        self._writing: dict[tuple[str, str], threading.Lock] = {}

    def ensure(self, namespace: str, template: ClaimTemplate, *, dry_run: bool) -> None:
        """Return once `template` exists in `namespace` and cannot be deleted under the pod's feet.

        No API call if it is known and fresh. Raises TemplateUnavailable.
        """
        key = (namespace, template.name)
        if dry_run or self._is_fresh(key, template):
            return
        with self._known_lock:
            writing = self._writing.setdefault(key, threading.Lock())
        # Held across remote calls on purpose: a thousand equal pods make one write, and wait for it.
        if not writing.acquire(timeout=_WAIT_S):
            raise TemplateUnavailable(f"ResourceClaimTemplate {namespace}/{template.name} is late; try again")
        try:
            if not self._is_fresh(key, template):
                self._write(key, template)
        finally:
            writing.release()
            with self._known_lock:
                self._writing.pop(key, None)

    def _is_fresh(self, key: tuple[str, str], template: ClaimTemplate) -> bool:
        known = self._known.get(key)
        if known is None or self._now() - known.last_used >= self._refresh_after:
            return False
        if not covers(known.spec, template.spec):
            raise _imposter(*key)
        return True

    def _write(self, key: tuple[str, str], template: ClaimTemplate) -> None:
        namespace, name = key
        stamp = {"annotations": {names.LAST_USED_ANNOTATION: timestamp(self._now())}}
        # The other write may be needed when somebody else creates or deletes it in between.
        creates = (key not in self._known, key in self._known, key not in self._known)
        for create in creates:
            try:
                if create:
                    live = self._create(namespace, template, stamp)
                else:
                    live = self._api.call(
                        "PATCH",
                        f"{collection(namespace)}/{name}",
                        body={"metadata": stamp},
                        content_type=MERGE_PATCH,
                    )
            except ApiError as error:
                if error.status in (404, 409) and not _is_namespace_missing(error):
                    continue
                raise TemplateUnavailable(_explain(error, key)) from error
            self._on_write("create" if create else "refresh")
            self.upsert(live)
            if not covers(dig(live, "spec", "spec"), template.spec):
                raise _imposter(*key)
            return
        raise TemplateUnavailable(f"ResourceClaimTemplate {namespace}/{name} appears and vanishes; try again")

    def _create(self, namespace: str, template: ClaimTemplate, stamp: Mapping[str, object]) -> JsonObject:
        labels = {names.MANAGED_LABEL: "true"}
        return self._api.call(
            "POST",
            collection(namespace),
            body={
                "apiVersion": f"{names.RESOURCE_GROUP}/{names.RESOURCE_VERSION}",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": template.name, "labels": labels, **stamp},
                "spec": {"metadata": {"labels": labels}, "spec": template.spec},
            },
        )

    def replace(self, objects: Sequence[JsonObject]) -> None:
        """A fresh list of all our templates."""
        known = {_key(each): _digest(each) for each in objects}
        with self._known_lock:
            self._known = known

    def upsert(self, changed: JsonObject) -> None:
        """One template was added or changed."""
        with self._known_lock:
            self._known[_key(changed)] = _digest(changed)

    def remove(self, gone: JsonObject) -> None:
        """One template was deleted."""
        with self._known_lock:
            self._known.pop(_key(gone), None)


def _key(template: JsonObject) -> tuple[str, str]:
    return text(dig(template, "metadata", "namespace")), text(dig(template, "metadata", "name"))


def _digest(template: JsonObject) -> _Known:
    return _Known(spec=dig(template, "spec", "spec"), last_used=last_used(template))


def _imposter(namespace: str, name: str) -> TemplateUnavailable:
    return TemplateUnavailable(
        f"ResourceClaimTemplate {namespace}/{name} does not say what its name stands for: somebody else"
        f" wrote it, or the feature gate {names.CONSUMABLE_CAPACITY_GATE} was off; delete it and try again"
    )


def _is_namespace_missing(error: ApiError) -> bool:
    return error.status == 404 and "namespaces" in error.message


def _explain(error: ApiError, key: tuple[str, str]) -> str:
    what = f"ResourceClaimTemplate {key[0]}/{key[1]} cannot be written: {error.message}"
    return what if error.status else f"{what}; try again"
