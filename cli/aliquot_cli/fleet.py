# SPDX-License-Identifier: Apache-2.0
"""Reads the GPUs of a cluster and who has what of them from the API server."""

from collections.abc import Sequence

from aliquot_api import names
from aliquot_api.wire import JsonObject
from aliquot_cli.cards import Card, cards
from aliquot_cli.cluster import RESOURCES, optional_list
from aliquot_cli.taintrules import list_rules
from aliquot_webhook.kube import ListApi


def our_slices(api: ListApi) -> list[JsonObject]:
    """The ResourceSlices of our driver."""
    query = {"fieldSelector": f"spec.driver={names.DRIVER}"}
    return api.list_all(f"{RESOURCES}/resourceslices", query)[0]


def cards_of(api: ListApi, slices: Sequence[JsonObject], *, namespace: str | None = None) -> tuple[Card, ...]:
    """The GPUs of `slices` with their shares and taints; with a namespace only its shares."""
    where = f"namespaces/{namespace}/" if namespace else ""
    return cards(slices, optional_list(api, f"{RESOURCES}/{where}resourceclaims"), list_rules(api))


def read_cards(api: ListApi, *, namespace: str | None = None) -> tuple[Card, ...]:
    """All GPUs; with a namespace only its shares are named."""
    return cards_of(api, our_slices(api), namespace=namespace)
