# SPDX-License-Identifier: Apache-2.0
"""Environment variables in a pod with GPUs: none of them decides about GPUs, and none may open one.

Devices come from CDI. Where a node's default runtime is NVIDIA's, an image's own NVIDIA_VISIBLE_DEVICES=all
would open every card to every container of the pod, so each gets `void`.
"""

from collections.abc import Iterator
from typing import Final

from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, items, obj, text
from aliquot_webhook import patch
from aliquot_webhook.patch import Operation
from aliquot_webhook.pods import SECTIONS

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"
_VARIABLE: Final = {"name": VISIBLE_DEVICES, "value": VOID}
_VARIABLES: Final = [_VARIABLE]
HARMLESS: Final = (VOID, "none")
OF_HAMI: Final = frozenset(
    {
        "CUDA_DEVICE_MEMORY_LIMIT",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "CUDA_OVERSUBSCRIBE",
        "CUDA_TASK_PRIORITY",
        "CUDA_DISABLE_CONTROL",
        "GPU_CORE_UTILIZATION_POLICY",
        "ACTIVE_OOM_KILLER",
        "LIBCUDA_LOG_LEVEL",
        "RECORD_KERNEL_INTERVAL",
        "CUDA_REDIRECT",
    }
)
"""Variables that HAMi's library reads and ours does not."""


def operations(spec: JsonObject) -> Iterator[Operation]:
    """`void` for every container that does not say it. Raises InvalidInput for one that names devices."""
    for section in SECTIONS:
        for index, container in enumerate(items(spec.get(section))):
            if not isinstance(container, dict):
                continue
            variables = container.get("env")
            if isinstance(variables, list):
                known = False
                for place, each in enumerate(variables):
                    if obj(each).get("name") == VISIBLE_DEVICES:
                        known = True
                        if obj(each).get("value") not in HARMLESS:
                            raise InvalidInput(
                                field=f"spec.{section}[{index}].env[{place}]",
                                value=f"{VISIBLE_DEVICES}={text(obj(each).get('value'))[:64]}",
                                fix="the claim decides which GPUs a container gets; remove the variable",
                            )
                if not known:
                    yield patch.add(_VARIABLE, "spec", section, index, "env", "-")
            else:
                yield patch.add(_VARIABLES, "spec", section, index, "env")


def warnings(spec: JsonObject) -> Iterator[str]:
    """Variables that meant something to HAMi."""
    for section in SECTIONS:
        for container in items(spec.get(section)):
            for each in items(obj(container).get("env")):
                name = text(obj(each).get("name"))
                base = name.rstrip("0123456789").removesuffix("_")
                if name in OF_HAMI or (base != name and base in OF_HAMI):
                    owner = text(obj(container).get("name"))[:63]
                    yield f"container {owner}: {name} has no effect: limits come from the claim"
