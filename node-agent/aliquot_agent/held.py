# SPDX-License-Identifier: Apache-2.0
"""Which way each GPU is shared: as its shares were prepared, else as node configuration says. Pure.

A change of the configuration counts for a GPU when the shares of the old way are gone: until then the device
shows what it is, and the scheduler keeps the ways apart.
"""

from collections.abc import Iterable

from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.nodepolicy import GpuPolicy
from aliquot_api import modes
from aliquot_api.modes import Mode
from aliquot_api.names import DRIVER


def by_device(claims: Iterable[PreparedClaim]) -> dict[str, Mode]:
    """The mode of each device that holds shares with a limit."""
    return {share.device: mode_of(share) for claim in claims for share in claim.shares if not share.whole}


def mode_of(share: PreparedShare) -> Mode:
    """The way a share was prepared."""
    return modes.parse(share.sharing, field="sharing")


def of_gpu(policy: GpuPolicy, now: Mode | None) -> Mode:
    """The mode of a GPU that holds shares of mode `now`; None: it holds none."""
    if now is not None and policy.sharing != modes.EXCLUSIVE:
        return now
    return policy.sharing


def refusal(wish: Mode, *, device: str, mode: Mode) -> str | None:
    """Why a share with this wish is not given on a GPU of this mode; None: it is."""
    # Who holds part of a card that was shareable when the scheduler chose it is held by the shim.
    offered = modes.SHIM if mode == modes.EXCLUSIVE else mode
    if offered.serves(wish):
        return None
    wanted = {"sharing": wish.sharing.value} | (
        {"timeSlice": wish.time_slice.value} if wish.time_slice else {}
    )
    selector = " && ".join(
        f'device.attributes["{DRIVER}"].{name} == "{word}"' for name, word in wanted.items()
    )
    return (
        f"the claim wishes sharing {wish}, but device {device} is shared by {offered}: let its request "
        f"select such GPUs ({selector}), or let its ShareConfig say {offered}"
    )


def clash(wanted: Iterable[PreparedShare], others: Iterable[PreparedClaim]) -> str | None:
    """Why shares of two ways would meet on one GPU; None: they do not."""
    now = by_device(others)
    for share in wanted:
        if not share.whole and now.get(share.device, mode_of(share)) != mode_of(share):
            return (
                f"device {share.device} still holds shares of mode {now[share.device]}, this one is "
                f"{share.sharing}: node configuration was changed; it can start when they have ended"
            )
    return None
