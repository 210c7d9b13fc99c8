# SPDX-License-Identifier: Apache-2.0
"""Feeds the agent's parsers of untrusted input with what a fuzzer makes: `make fuzz`.

Opaque configuration and allocation results (any user's claim), ledgers (a tenant writes into them), node
configuration, annotations, and files of others on the node. Each may refuse with its own error; anything
else, an endless loop or a crash, is a finding. libFuzzer's options follow: -max_total_time=60 -seed=1.
"""

import json
import sys
from contextlib import suppress

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore] # group fuzz only

with atheris.instrument_imports(include=["aliquot_agent", "aliquot_api"]):
    from aliquot_agent import allocation, checkpoint, foreign, nodeconfig, region
    from aliquot_agent.errors import Refused
    from aliquot_api import annotations
    from aliquot_api.errors import InvalidInput

from tests.unit.agent.kit import NODE, make_claim, make_gpu, result

GPU = make_gpu(0)
HEAD = "apiVersion: aliquot.dev/v1alpha1\nkind: NodeConfig\n"


def json_of(data: atheris.FuzzedDataProvider, depth: int = 0) -> object:
    """Any JSON value."""
    kind = data.ConsumeIntInRange(0, 4 if depth > 4 else 6)
    if kind < 5:
        scalars = (None, data.ConsumeBool(), data.ConsumeInt(9), data.ConsumeFloat(), data.ConsumeUnicode(40))
        return scalars[kind]
    size = data.ConsumeIntInRange(0, 4)
    if kind == 5:
        return [json_of(data, depth + 1) for _ in range(size)]
    return {data.ConsumeUnicode(12): json_of(data, depth + 1) for _ in range(size)}


def claim(data: atheris.FuzzedDataProvider) -> None:
    """A claim whose opaque parameters, amounts and names are anybody's."""
    made = result(GPU)
    key = data.PickValueInList(["request", "shareID", "consumedCapacity", "device", "adminAccess"])
    made[key] = {"memory": data.ConsumeUnicode(30)} if key == "consumedCapacity" else json_of(data)
    parameters = json_of(data)
    if isinstance(parameters, dict) and data.ConsumeBool():
        parameters |= {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "ShareConfig"}
    config = {"source": "FromClaim", "opaque": {"driver": "gpu.aliquot.dev", "parameters": parameters}}
    whole = make_claim(made, config=[config])
    whole["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": json_of(data)}
    with suppress(Refused):
        allocation.own_results(whole, uid=whole["metadata"]["uid"], node=NODE)
    name = allocation.pod_claim_name(whole)
    assert "/" not in name


def ledger(data: atheris.FuzzedDataProvider) -> None:
    """A ledger that a tenant wrote over."""
    header = bytearray(region.encode_ledger_header(data.ConsumeIntInRange(0, 2**63 - 1)))
    for _ in range(data.ConsumeIntInRange(0, 8)):
        position = data.ConsumeIntInRange(0, len(header) - 8)
        header[position : position + 8] = data.ConsumeBytes(8).ljust(8, b"\0")
    with suppress(region.DamagedRegion):
        length = region.slots_length(bytes(header))
        assert length <= region.SLOTS * region.SLOT_SIZE
        region.decode_ledger(bytes(header), data.ConsumeBytes(length))


def texts(data: atheris.FuzzedDataProvider) -> None:
    """Documents that people and programs write."""
    text = data.ConsumeUnicode(400)
    for document in (text, HEAD + text, f"{HEAD}defaults: {text}"):
        with suppress(InvalidInput):
            nodeconfig.decode(document).resolve(node="n", labels={})
    with suppress(InvalidInput):
        annotations.memory_limits(text, field="f", containers=("a", "b"))
    for document in (text, json.dumps({"Data": json_of(data)})):
        with suppress(foreign.Unreadable):
            foreign.by_device_plugin(document, [GPU])
        with suppress(checkpoint.UnreadableCheckpoint):
            checkpoint.decode(document.encode(errors="replace"), uid="u")


def one(raw: bytes) -> None:
    """One input."""
    data = atheris.FuzzedDataProvider(raw)
    data.PickValueInList([claim, ledger, texts])(data)


def main() -> int:
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
