# SPDX-License-Identifier: Apache-2.0
"""The node configuration as administrators write it, decoded strictly to the last field. Pure.

One document for the cluster (ConfigMap `aliquot-node-config`, key `config.yaml`): `defaults`, then `nodes`
entries that override them by node name or label, in order, the later the stronger; `namespaces` for policies
of tenants. docs/node-agent.md shows one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from aliquot_agent import documents
from aliquot_agent.nodepolicy import (
    APPLICATION_XIDS,
    GpuOverride,
    NamespacePolicy,
    NodeConfig,
    Order,
    Selector,
    Stated,
    TaintEffect,
)
from aliquot_api import modes, quantity
from aliquot_api.config import ComputePolicy, OverQuota, Sharing, TimeSlice
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode

API_VERSION: Final = "aliquot.dev/v1alpha1"
KIND: Final = "NodeConfig"
_MOST_SHARES: Final = 1000
_MOST_XIDS: Final = 1000


def decode(text: str) -> NodeConfig:
    """The document in `text`; raises InvalidInput for anything that is not understood to the last field."""
    try:
        document = documents.load_strict(text)
    except documents.BadDocument as error:
        raise InvalidInput(field="config.yaml", value=text[:40], fix=f"no YAML: {error}") from error
    body = _mapping(document, path="config.yaml")
    header = (("apiVersion", API_VERSION), ("kind", KIND))
    for key, want in header:
        if body.get(key) != want:
            raise InvalidInput(field=key, value=body.get(key), fix=f"want {want!r}")
    _known(body, ("apiVersion", "kind", "defaults", "nodes", "namespaces"), path="")
    nodes = []
    for path, entry in _entries(body.get("nodes"), path="nodes"):
        nodes.append((_selector(entry, path=path), _stated(entry, path=path, also=("names", "labels"))))
    return NodeConfig(
        defaults=_stated(_mapping(body.get("defaults"), path="defaults"), path="defaults"),
        nodes=tuple(nodes),
        namespaces=_namespaces(body.get("namespaces")),
    )


def _selector(entry: Mapping[str, object], *, path: str) -> Selector:
    names = tuple(
        _text(item, path=item_path) for item_path, item in _items(entry.get("names"), f"{path}.names")
    )
    labels = {
        key: _text(value, path=f"{path}.labels[{key}]")
        for key, value in _mapping(entry.get("labels"), path=f"{path}.labels").items()
    }
    if not names and not labels:
        raise InvalidInput(
            field=path, value=sorted(entry), fix="want names or labels: which nodes are meant?"
        )
    return Selector(names=names, labels=labels)


def _namespaces(value: object) -> dict[str, NamespacePolicy]:
    policies: dict[str, NamespacePolicy] = {}
    for name, entry in _mapping(value, path="namespaces").items():
        path = f"namespaces[{name}]"
        body = _mapping(entry, path=path)
        _known(body, tuple(_NAMESPACE_FIELDS), path=path)
        policies[name] = NamespacePolicy(**_read(body, _NAMESPACE_FIELDS, path=path))
    return policies


def _stated(body: Mapping[str, object], *, path: str, also: Sequence[str] = ()) -> Stated:
    _known(body, (*_GPU_FIELDS, *_NODE_FIELDS, "health", "resize", "gpus", *also), path=path)
    gpus = []
    for entry_path, entry in _entries(body.get("gpus"), path=f"{path}.gpus"):
        _known(entry, (*_GPU_FIELDS, "match"), path=entry_path)
        uuids, indices = _match(entry.get("match"), path=f"{entry_path}.match")
        gpus.append(GpuOverride(uuids, indices, _read(entry, _GPU_FIELDS, path=entry_path)))
    groups = {}
    for name, table in (("health", _HEALTH_FIELDS), ("resize", _RESIZE_FIELDS)):
        group = _mapping(body.get(name), path=f"{path}.{name}")
        _known(group, tuple(table), path=f"{path}.{name}")
        groups[name] = _read(group, table, path=f"{path}.{name}")
    return Stated(
        gpu=_read(body, _GPU_FIELDS, path=path),
        node=_read(body, _NODE_FIELDS, path=path),
        health=groups["health"],
        resize=groups["resize"],
        gpus=tuple(gpus),
    )


def _match(value: object, *, path: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    uuids: list[str] = []
    indices: list[int] = []
    for item_path, item in _items(value, path):
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1024:
            indices.append(item)
        elif isinstance(item, str) and item.lower().startswith("gpu-"):
            uuids.append(item.lower())
        else:
            raise InvalidInput(
                field=item_path, value=item, fix="want a GPU's UUID (GPU-…) or its index (0, 1, …)"
            )
    if not uuids and not indices:
        raise InvalidInput(field=path, value=value, fix="want a list of GPU UUIDs or indices")
    return tuple(uuids), tuple(indices)


def _over_quota(value: object, path: str) -> OverQuota:
    return OverQuota(_choice(value, path, tuple(OverQuota)))


def _sharing(value: object, path: str) -> Mode:
    if value is False:
        raise InvalidInput(
            field=path, value="off", fix="want exclusive (one tenant at a time), or publish: false (not ours)"
        )
    mode = modes.parse(_choice(value, path, modes.WORDS), field=path)
    return Mode(mode.sharing, TimeSlice.DEFAULT) if mode == Mode(Sharing.TIMESLICE) else mode


def _compute_policy(value: object, path: str) -> ComputePolicy:
    word = "off" if value is False else value  # YAML 1.1 takes off for false
    return ComputePolicy(_choice(word, path, tuple(ComputePolicy)))


def _choice(value: object, path: str, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(field=path, value=value, fix=f"want one of {', '.join(allowed)}")
    return value


def _bytes(value: object, path: str) -> int:
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    size = quantity.parse(text, field=path)
    if size < 0:
        raise InvalidInput(field=path, value=value, fix="want a size of at least 0")
    return size


def _shares(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_SHARES:
        raise InvalidInput(field=path, value=value, fix=f"want 1 to {_MOST_SHARES}")
    return value


def _boolean(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(field=path, value=value, fix="want true or false")
    return value


def _xids(value: object, path: str) -> frozenset[int]:
    codes = []
    for item_path, item in _items(value, path):
        if not isinstance(item, int) or isinstance(item, bool) or not 0 < item < _MOST_XIDS:
            raise InvalidInput(field=item_path, value=item, fix="want an XID's number")
        codes.append(item)
    return APPLICATION_XIDS | frozenset(codes)


_Reader = Callable[[object, str], object]
_Table = Mapping[str, tuple[str, _Reader]]
"""Name in the document -> field of the dataclass and how its value is read."""

_GPU_FIELDS: Final[_Table] = {
    "reserve": ("reserve_bytes", _bytes),
    "shares": ("shares", _shares),
    "sharing": ("sharing", _sharing),
    "publish": ("publish", _boolean),
}
_NODE_FIELDS: Final[_Table] = {
    "order": ("order", lambda value, path: Order(_choice(value, path, tuple(Order)))),
    "overQuota": ("policy", _over_quota),
    "computePolicy": ("compute", _compute_policy),
    "tolerance": ("tolerance_bytes", _bytes),
    "respectBudgets": ("respect_budgets", _boolean),
}
_NAMESPACE_FIELDS: Final[_Table] = {
    "overQuota": ("over_quota", _over_quota),
    "computePolicy": ("compute", _compute_policy),
}
_HEALTH_FIELDS: Final[_Table] = {
    "effect": ("effect", lambda value, path: TaintEffect(_choice(value, path, tuple(TaintEffect)))),
    "ignoreXids": ("ignored_xids", _xids),
}
_RESIZE_FIELDS: Final[_Table] = {
    "grow": ("grow", _boolean),
    "most": ("most_bytes", _bytes),
}


def _read(body: Mapping[str, object], table: _Table, *, path: str) -> dict[str, Any]:
    return {
        target: read(body[name], f"{path}.{name}") for name, (target, read) in table.items() if name in body
    }


def _known(body: Mapping[str, object], allowed: Sequence[str], *, path: str) -> None:
    for key, value in body.items():
        if key in allowed:
            continue
        name = f"{path}.{key}" if path else key
        fix = f"unknown field; want one of {', '.join(allowed)}"
        if key in ("memoryFactor", "oversubscription", "memoryScaling"):
            fix = "memory is not oversubscribed: what happens when the card is full is not defined yet"
        raise InvalidInput(field=name, value=value, fix=fix)


def _mapping(value: object, *, path: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(field=path, value=value, fix="want a mapping")
    return value


def _entries(value: object, *, path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    for item_path, item in _items(value, path):
        yield item_path, _mapping(item, path=item_path)


def _items(value: object, path: str) -> Iterator[tuple[str, object]]:
    if value is None:
        return
    if not isinstance(value, list):
        raise InvalidInput(field=path, value=value, fix="want a list")
    for index, item in enumerate(value):
        yield f"{path}[{index}]", item


def _text(value: object, *, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field=path, value=value, fix='want text: put it in quotes ("…")')
    return value
