# SPDX-License-Identifier: Apache-2.0
"""What is asked before Aliquot is installed or removed, and cleared away after: the chart runs it in hooks.

aliquot-controller check-install      would this API server keep what shares rest on?
aliquot-controller check-uninstall    does anybody still use a GPU of ours, or have a budget?
aliquot-controller wait-agents        until no agent runs any more
aliquot-controller clean-up           deletes what Aliquot made while it ran
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from aliquot_api import names
from aliquot_api.wire import JsonObject, dig, items, obj, only, text
from aliquot_controller.settings import NAME, ControllerSettings
from aliquot_webhook import settings as webhook
from aliquot_webhook.kube import ApiError, ListApi
from aliquot_webhook.probe import capacity_problem
from aliquot_webhook.templates import ROOT, SELECTOR, collection

_AGENT_LABELS: Final = "app.kubernetes.io/name in (aliquot-agent, aliquot-sim)"
_CLEANERS: Final = "aliquot-clean-nodes"
"""The DaemonSet that clears the nodes."""
_WAIT_S: Final = 90.0
_EVERY_S: Final = 0.5
_SHOWN: Final = 5


def check_install(api: ListApi, settings: ControllerSettings) -> Iterator[str]:
    """Why it must not be installed. No clear answer is no reason: the parts look again."""
    try:
        problem = capacity_problem(api, settings.namespace)
    except ApiError as error:
        sys.stderr.write(f"aliquot: the API server gives no clear answer ({error.message}); going on\n")
        return
    if problem is not None:
        yield problem


def check_uninstall(api: ListApi, settings: ControllerSettings) -> Iterator[str]:
    """Why it must not be removed."""
    claims, _ = api.list_all(f"{ROOT}/resourceclaims", {}, _ours)
    used = sorted(map(_name, claims))
    if used:
        yield (
            f"claims in use: {_some(used)}. Without the node agent their pods cannot end in order:"
            " delete these pods first"
        )
    budgets = sorted(
        map(_name, _all(api, f"/apis/{names.CONFIG_GROUP}/{names.CONFIG_VERSION}/aliquotbudgets"))
    )
    if budgets:
        yield (
            f"budgets that would be lost: {_some(budgets)}. Delete them first, or keep them by"
            " `helm upgrade --reuse-values --set budgets.keep=true`"
        )
    if used or budgets:
        yield (
            "nothing was removed; `helm rollback` to the last revision goes on with it,"
            " `helm uninstall --no-hooks` removes it all the same"
        )


def wait_agents(api: ListApi, settings: ControllerSettings) -> Iterator[str]:
    """Until no agent writes to its node's files; after a while as it is."""
    path = f"/api/v1/namespaces/{settings.namespace}/pods"
    _wait(lambda: not api.list_all(path, {"labelSelector": _AGENT_LABELS})[0], what="the agents to end")
    yield from ()


def clean_up(api: ListApi, settings: ControllerSettings) -> Iterator[str]:
    """What was made while Aliquot ran, and belongs to no chart."""
    for template in api.list_all(f"{ROOT}/resourceclaimtemplates", {"labelSelector": SELECTOR})[0]:
        _delete(api, f"{collection(_of(template, 'namespace'))}/{_of(template, 'name')}")
    _delete(api, f"/api/v1/namespaces/{settings.namespace}/secrets/{webhook.SECRET}")
    _delete(api, f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases/{NAME}")
    for each in api.list_all(f"{ROOT}/resourceslices", {"fieldSelector": f"spec.driver={names.DRIVER}"})[0]:
        _delete(api, f"{ROOT}/resourceslices/{_of(each, 'name')}")
    path = f"/apis/apps/v1/namespaces/{settings.namespace}/daemonsets/{_CLEANERS}"
    _wait(lambda: _is_everywhere(api.call("GET", path)), what="all nodes to be cleared")
    yield from ()


COMMANDS: Final[dict[str, Callable[[ListApi, ControllerSettings], Iterator[str]]]] = {
    "check-install": check_install,
    "check-uninstall": check_uninstall,
    "wait-agents": wait_agents,
    "clean-up": clean_up,
}


def run(command: str, *, api: ListApi, settings: ControllerSettings) -> int:
    """One of the commands; the exit status: 1 with reasons against it."""
    try:
        reasons = list(COMMANDS[command](api, settings))
    except ApiError as error:
        reasons = [f"{command} could not be done: {error.message}"]
    for reason in reasons:
        sys.stderr.write(f"aliquot: {reason}\n")
    return 1 if reasons else 0


def _ours(claim: JsonObject) -> JsonObject | None:
    results = items(dig(claim, "status", "allocation", "devices", "results"))
    if any(text(obj(result).get("driver")) == names.DRIVER for result in results):
        return only(claim, metadata=("namespace", "name"))
    return None


def _is_everywhere(daemonset: JsonObject) -> bool:
    status = obj(daemonset.get("status"))
    seen = status.get("observedGeneration") == dig(daemonset, "metadata", "generation")
    return seen and status.get("numberReady") == status.get("desiredNumberScheduled")


def _all(api: ListApi, path: str) -> list[JsonObject]:
    """All objects; none where the server does not know their kind."""
    try:
        return api.list_all(path, {})[0]
    except ApiError as error:
        if error.status == 404:
            return []
        raise


def _delete(api: ListApi, path: str) -> None:
    try:
        api.call("DELETE", path)
    except ApiError as error:
        if error.status != 404:
            raise


def _wait(condition: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not _holds(condition):
        if time.monotonic() > deadline:
            sys.stderr.write(f"aliquot: waited {_WAIT_S:.0f} s for {what}; going on without\n")
            return
        time.sleep(_EVERY_S)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except ApiError as error:
        if error.status == 404:
            return True
        sys.stderr.write(f"aliquot: {error.message}\n")
        return False


def _name(of: JsonObject) -> str:
    return f"{_of(of, 'namespace')}/{_of(of, 'name')}"


def _of(what: JsonObject, field: str) -> str:
    return text(dig(what, "metadata", field))


def _some(found: Sequence[str]) -> str:
    rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + rest
