# SPDX-License-Identifier: Apache-2.0
"""Makes sure that the template a pod names exists, and stays, before the pod is admitted.

The protocol between this module, which creates and refreshes, and the controller, which deletes, has no
lock and no shared clock beyond rough agreement. Each template T carries `keep-until`, a time K. Let g be the
grace period of a webhook, and d the API server's request time-out plus the largest difference of clocks.

- A pod is answered with template T only if (a) K is more than g/2 ahead in our copy of T, or (b) this
  admission has created T, or (c) has moved its K; the writes of (b) and (c) set K = now + g and have
  succeeded before we answer. K never moves back: a refresh names the resourceVersion that it has seen. A
  refresh that finds nothing (404) becomes a create, a create that finds something (409) reads it.
- The controller deletes T only if, in one freshly read version of it, K is over, and a list of the
  namespace's pods that was read after that shows none that names T; and it deletes that version only
  (preconditions uid and resourceVersion).

Why no admitted pod is stranded: let the pod be answered at time a. In each case a version of T had
K >= a + d (g/2 >= d is checked at start), and so has every later one. So a deletion begins later than a + d,
when the pod's creation is over: it shows in the list of pods, or was refused, or has come and gone. That
also covers a copy of ours that lags behind. A write after the controller's look makes the precondition
fail. The grace need not be the same everywhere: it is the template that says how long it has to stay.
Deletion by anybody else is seen by the watch; a pod admitted in that moment waits, until the next pod of its
kind brings T back.

Dry-run writes nothing. A namesake with other content is refused, never used.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from aliquot_api import names
from aliquot_api.wire import JsonObject, dig, obj, text
from aliquot_webhook.claims import ClaimTemplate, covers
from aliquot_webhook.kube import MERGE_PATCH, Api, ApiError

ROOT: Final = f"/apis/{names.RESOURCE_GROUP}/{names.RESOURCE_VERSION}"
SELECTOR: Final = f"{names.MANAGED_LABEL}=true"
_WAIT_S: Final = 4.0
"""Less than the time-out of the webhook configuration, so that the author gets our words."""
_ATTEMPTS: Final = 4
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class TemplateUnavailable(Exception):
    """The template cannot be had, so the pod must not be admitted; the text says why."""


@dataclass(slots=True)
class _Known:
    spec: object
    """Metadata and spec of its claims."""
    version: str
    keep_until: datetime
    covers: ClaimTemplate | None = None
    """What it was last found to hold all of."""


def collection(namespace: str) -> str:
    """Path of the templates of a namespace."""
    return f"{ROOT}/namespaces/{namespace}/resourceclaimtemplates"


def keep_until(template: JsonObject) -> datetime | None:
    """The time before which the template must not be deleted; None if that is not written, or not
    readable."""
    stamp = obj(dig(template, "metadata", "annotations")).get(names.KEEP_UNTIL_ANNOTATION)
    return parse_timestamp(stamp)


def parse_timestamp(stamp: object) -> datetime | None:
    """A time as Kubernetes writes it; None for anything else."""
    try:
        return datetime.fromisoformat(text(stamp)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


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
        most_per_namespace: int,
        on_write: Callable[[str], None] = lambda kind: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._grace = timedelta(seconds=grace_s)
        self._most = most_per_namespace
        self._on_write = on_write
        self._now = now
        self._known: defaultdict[str, dict[str, _Known]] = defaultdict(dict)
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

    def _look_up(self, key: tuple[str, str]) -> _Known | None:
        with self._known_lock:
            return self._known.get(key[0], {}).get(key[1])

    def _is_fresh(self, key: tuple[str, str], template: ClaimTemplate) -> bool:
        known = self._look_up(key)
        if known is None or known.keep_until - self._now() <= self._grace / 2:
            return False
        if known.covers is not template:
            if not _holds(known.spec, template):
                raise _imposter(*key)
            known.covers = template  # equal requests come with the same object: compared once
        return True

    def _write(self, key: tuple[str, str], template: ClaimTemplate) -> None:
        namespace, name = key
        for _ in range(_ATTEMPTS):
            known = self._look_up(key)
            try:
                live = self._create(namespace, template) if known is None else self._refresh(key, known)
            except ApiError as error:
                if error.status not in (404, 409) or _is_namespace_missing(error):
                    raise TemplateUnavailable(_explain(error, key)) from error
                self._read(key)
                if self._is_fresh(key, template):
                    return
                continue
            self._on_write("create" if known is None else "refresh")
            self.upsert(live)
            if not _holds(live.get("spec"), template):
                raise _imposter(*key)
            return
        raise TemplateUnavailable(f"ResourceClaimTemplate {namespace}/{name} appears and vanishes; try again")

    def _create(self, namespace: str, template: ClaimTemplate) -> JsonObject:
        with self._known_lock:
            present = len(self._known.get(namespace, ()))
        if present >= self._most:
            raise TemplateUnavailable(
                f"namespace {namespace} has {present} ResourceClaimTemplates of Aliquot, one for each"
                " different"
                f" GPU request; no more than {self._most} are kept: ask for a size that other pods"
                " ask for too,"
                " or wait until unused ones are deleted"
            )
        labels = {names.MANAGED_LABEL: "true"}
        of_claims: dict[str, object] = {"labels": labels}
        if template.is_judged:
            of_claims["annotations"] = {names.JUDGED_ANNOTATION: "true"}
        return self._api.call(
            "POST",
            collection(namespace),
            body={
                "apiVersion": f"{names.RESOURCE_GROUP}/{names.RESOURCE_VERSION}",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": template.name, "labels": labels, "annotations": self._stamp()},
                "spec": {"metadata": of_claims, "spec": template.spec},
            },
        )

    def _refresh(self, key: tuple[str, str], known: _Known) -> JsonObject:
        metadata = {"annotations": self._stamp(), "resourceVersion": known.version}
        return self._api.call(
            "PATCH",
            f"{collection(key[0])}/{key[1]}",
            body={"metadata": metadata},
            content_type=MERGE_PATCH,
        )

    def _read(self, key: tuple[str, str]) -> None:
        """Look at the server's version instead of ours."""
        try:
            self.upsert(self._api.call("GET", f"{collection(key[0])}/{key[1]}"))
        except ApiError as error:
            if error.status != 404:
                raise TemplateUnavailable(_explain(error, key)) from error
            with self._known_lock:
                self._known[key[0]].pop(key[1], None)

    def _stamp(self) -> dict[str, str]:
        # Rounded up: a stamp has whole seconds.
        return {names.KEEP_UNTIL_ANNOTATION: timestamp(self._now() + self._grace + timedelta(seconds=1))}

    def replace(self, objects: Sequence[JsonObject]) -> None:
        """A fresh list of all our templates."""
        known: defaultdict[str, dict[str, _Known]] = defaultdict(dict)
        for each in objects:
            namespace, name = _key(each)
            known[namespace][name] = _digest(each)
        with self._known_lock:
            self._known = known

    def upsert(self, changed: JsonObject) -> None:
        """One template was added or changed."""
        namespace, name = _key(changed)
        with self._known_lock:
            self._known[namespace][name] = _digest(changed)

    def remove(self, gone: JsonObject) -> None:
        """One template was deleted."""
        namespace, name = _key(gone)
        with self._known_lock:
            self._known[namespace].pop(name, None)
            if not self._known[namespace]:
                del self._known[namespace]


def _key(template: JsonObject) -> tuple[str, str]:
    return text(dig(template, "metadata", "namespace")), text(dig(template, "metadata", "name"))


def _digest(template: JsonObject) -> _Known:
    return _Known(
        spec=template.get("spec"),
        version=text(dig(template, "metadata", "resourceVersion")),
        keep_until=keep_until(template) or _EPOCH,
    )


def _holds(spec: object, template: ClaimTemplate) -> bool:
    """Whether a template with `spec` makes the claims that `template` stands for."""
    is_judged = names.JUDGED_ANNOTATION in obj(dig(spec, "metadata", "annotations"))
    return is_judged == template.is_judged and covers(dig(spec, "spec"), template.spec)


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
