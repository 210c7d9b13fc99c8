# SPDX-License-Identifier: Apache-2.0
"""The wires of a cluster: a control plane's and each node's network namespace, and the veths between them.

A namespace lives as long as the process that holds it, and its devices with it: nothing here needs a name
in the file system, and nothing stays when the holders are gone.
"""

import re
from collections.abc import Iterable

from .spec import MOST_CLUSTERS, Addresses
from .system import TestbedError, run

BRIDGE = "nodes"


def free_addresses(taken: Iterable[int]) -> Addresses:
    """Addresses that neither another cluster nor one of the machine's routes uses."""
    routes = set(re.findall(r"\b10\.(\d+)\.", run("ip", "route", "show", "table", "all")))
    for index in range(MOST_CLUSTERS):
        if index not in taken and str(128 + index) not in routes:
            return Addresses(index)
    raise TestbedError("no free network 10.128.0.0/16 to 10.227.0.0/16; take a cluster down")


def _batch(lines: Iterable[str], *, inside: int | None = None) -> None:
    """Run lines of ip(8), in the network namespace that a process holds."""
    enter = () if inside is None else ("nsenter", "-t", str(inside), "-n")
    run(*enter, "ip", "-batch", "-", stdin="\n".join(lines) + "\n")


def connect_control_plane(addresses: Addresses, *, holder: int) -> None:
    """Join the control plane's namespace with the host, and make it the router of all nodes."""
    _batch(
        [
            f"link add {addresses.link} type veth peer name uplink netns {holder}",
            f"address add {addresses.host}/30 dev {addresses.link}",
            f"link set {addresses.link} up",
            f"route add {addresses.all} via {addresses.uplink}",
        ]
    )
    _batch(
        [
            "link set lo up",
            f"address add {addresses.uplink}/30 dev uplink",
            "link set uplink up",
            f"link add {BRIDGE} type bridge",
            f"address add {addresses.control_plane}/24 dev {BRIDGE}",
            f"link set {BRIDGE} up",
        ],
        inside=holder,
    )
    run("nsenter", "-t", str(holder), "-n", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")


def connect_node(addresses: Addresses, number: int, *, control: int, holder: int) -> None:
    """Join a node's namespace with the control plane's; its pods are routed there by its address."""
    _batch(
        [
            f"link add node{number} master {BRIDGE} type veth peer name eth0 netns {holder}",
            f"link set node{number} up",
            f"route replace {addresses.node_pods(number)} via {addresses.node(number)}",
        ],
        inside=control,
    )
    _batch(
        [
            "link set lo up",
            f"address add {addresses.node(number)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {addresses.control_plane}",
        ],
        inside=holder,
    )


def disconnect_node(number: int, *, control: int) -> None:
    """Remove a node's wire, so that its successor can have the name at once."""
    try:
        if _has_wire(number, control=control):
            _batch([f"link delete node{number}"], inside=control)
    except TestbedError:  # the kernel removes it too, some time after the namespace has lost its last process
        if _has_wire(number, control=control):
            raise


def _has_wire(number: int, *, control: int) -> bool:
    return f" node{number}@" in run("nsenter", "-t", str(control), "-n", "ip", "-o", "link")


def set_node_link(number: int, *, control: int, up: bool) -> None:
    """Plug a node's wire in or out."""
    _batch([f"link set node{number} {'up' if up else 'down'}"], inside=control)


def disconnect_host(addresses: Addresses) -> None:
    """Remove the host's end, and the route with it."""
    try:
        if is_connected(addresses):
            _batch([f"link delete {addresses.link}"])
    except TestbedError:  # the kernel removes it too, some time after the namespace has lost its last process
        if is_connected(addresses):
            raise


def is_connected(addresses: Addresses) -> bool:
    return f" {addresses.link}@" in run("ip", "-o", "link")
