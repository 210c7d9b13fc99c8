# SPDX-License-Identifier: Apache-2.0
"""`spec.nodeName` of a pod with GPUs becomes a node selector: a claim is allocated by the scheduler only."""

import re
from collections.abc import Iterator
from typing import Final

from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, obj, text
from aliquot_webhook import patch
from aliquot_webhook.patch import Operation

HOSTNAME: Final = "kubernetes.io/hostname"
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def operations(spec: JsonObject) -> Iterator[Operation]:
    """Node name out, selector in. Raises InvalidInput where the two contradict each other."""
    given = spec.get("nodeName")
    if not given:
        return
    node, selector = text(given), spec.get("nodeSelector")
    present = obj(selector).get(HOSTNAME, node)
    if not _LABEL_VALUE.fullmatch(node) or present != node:
        raise InvalidInput(
            field="spec.nodeName",
            value=node[:64],
            fix=f"a pod with GPUs has to pass the scheduler; use nodeSelector {HOSTNAME} alone",
        )
    yield patch.remove("spec", "nodeName")
    if not isinstance(selector, dict):
        yield patch.add({HOSTNAME: node}, "spec", "nodeSelector")
    elif HOSTNAME not in selector:
        yield patch.add(node, "spec", "nodeSelector", HOSTNAME)


def warnings(spec: JsonObject) -> Iterator[str]:
    """What is different from going there directly."""
    if spec.get("nodeName"):
        yield (
            f"spec.nodeName became nodeSelector {HOSTNAME}: the scheduler has to allocate the GPU, so the"
            " node's taints and free resources count now"
        )
