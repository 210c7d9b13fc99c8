# SPDX-License-Identifier: Apache-2.0
"""Asks the server, by a dry run, whether it would keep what we write. A server that does not is not used.

Where the gate DRAConsumableCapacity is off, the API server drops capacity requests without an error, and
a claim for 8000Mi would become a claim for a whole GPU. The dry run writes what admission writes, a
template, so it needs no permission beyond admission's own.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aliquot_api import names, quantity
from aliquot_api.config import Sharing
from aliquot_api.wire import dig, text
from aliquot_webhook import cel
from aliquot_webhook.claims import Alternative, PlannedRequest, claim_template, covers
from aliquot_webhook.kube import Api, ApiError
from aliquot_webhook.loops import Loop
from aliquot_webhook.requests import GpuRequest
from aliquot_webhook.templates import ROOT, collection

logger = logging.getLogger(__name__)

_GOOD_S: Final = 60.0
_BAD_S: Final = 2.0
_DISTINCT_COUNT_FROM: Final = 36


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the last probe found."""

    problem: str | None
    """Why no GPU pod can be admitted, and how to fix that; None if all is well."""
    count_is_distinct: bool = True


def probe(api: Api, *, namespace: str) -> ServerState:
    """Look at the server once. Writes nothing. Raises ApiError where it gives no clear answer."""
    minor = re.match(r"\d+", text(api.call("GET", "/version").get("minor")))
    distinct = minor is not None and int(minor.group()) >= _DISTINCT_COUNT_FROM
    problem = _class_problem(api) or capacity_problem(api, namespace)
    return ServerState(problem=problem, count_is_distinct=distinct)


def _class_problem(api: Api) -> str | None:
    try:
        api.call("GET", f"{ROOT}/deviceclasses/{names.DEVICE_CLASS}")
    except ApiError as error:
        if error.status == 404 and names.DEVICE_CLASS in error.message:
            return f"DeviceClass {names.DEVICE_CLASS} is missing; an administrator has to install it"
        if error.status == 404:
            return f"the API server does not serve {names.RESOURCE_GROUP}/{names.RESOURCE_VERSION}"
        return _permission_problem(error, f"read DeviceClass {names.DEVICE_CLASS}")
    return None


def capacity_problem(api: Api, namespace: str) -> str | None:
    """Why shares cannot be had from this server, and how to fix that; None if they can."""
    request = GpuRequest(container="probe", count=1, memory_bytes=quantity.MIB, cores_percent=0)
    way = Alternative(selector=cel.equals("sharing", Sharing.SHIM), memory_bytes=request.memory_bytes)
    template = claim_template([PlannedRequest(name="probe", request=request, alternatives=(way,))])
    try:
        live = api.call(
            "POST",
            collection(namespace),
            query={"dryRun": "All"},
            body={
                "apiVersion": f"{names.RESOURCE_GROUP}/{names.RESOURCE_VERSION}",
                "kind": "ResourceClaimTemplate",
                "metadata": {"generateName": "probe-"},
                "spec": {"spec": template.spec},
            },
        )
    except ApiError as error:
        return _permission_problem(error, "create ResourceClaimTemplates")
    if not covers(dig(live, "spec", "spec"), template.spec):
        return (
            f"the API server drops capacity requests, so a share would become a whole GPU; an administrator"
            f" has to enable the feature gate {names.CONSUMABLE_CAPACITY_GATE} on kube-apiserver,"
            f" kube-scheduler and kubelet (it is on by default from Kubernetes 1.36)"
        )
    return None


def _permission_problem(error: ApiError, what: str) -> str:
    if error.status == 403:
        return f"Aliquot's webhook is not allowed to {what}; check its ClusterRole ({error.message})"
    if 400 <= error.status < 500 and error.status != 429:
        return f"Aliquot's webhook cannot {what}: {error.message}"
    raise error


class Probe:
    """Keeps the state current: quickly while something is wrong, once a minute otherwise."""

    def __init__(
        self, *, api: Api, namespace: str, on_state: Callable[[ServerState], None] = lambda _: None
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._on_state = on_state
        self._state: ServerState | None = None
        self._loop = Loop(name="probe", step=self._step, retry_s=_BAD_S)

    @property
    def state(self) -> ServerState | None:
        """None until the first probe has ended."""
        return self._state

    def start(self) -> None:
        """Probe in a thread of its own."""
        self._loop.start()

    def ask_to_stop(self) -> None:
        """End the thread soon."""
        self._loop.ask_to_stop()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        self._loop.join(timeout_s)

    def _step(self) -> float:
        state = probe(self._api, namespace=self._namespace)
        if state != self._state:
            if state.problem is None:
                logger.info("server is fit", extra={"count_is_distinct": state.count_is_distinct})
            else:
                logger.error("server is not fit: GPU pods are refused", extra={"problem": state.problem})
        self._state = state
        self._on_state(state)
        return _GOOD_S if state.problem is None else _BAD_S
