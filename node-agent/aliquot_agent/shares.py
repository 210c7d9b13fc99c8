# SPDX-License-Identifier: Apache-2.0
"""An allocation result as the share that is prepared from it. Pure."""

from collections.abc import Sequence

from aliquot_agent import held
from aliquot_agent.allocation import Result
from aliquot_agent.checkpoint import PreparedShare
from aliquot_agent.devices import CORES, shareable_bytes
from aliquot_agent.errors import Refused
from aliquot_agent.nodepolicy import GpuPolicy
from aliquot_agent.nvml import Gpu
from aliquot_api import modes
from aliquot_api.modes import Mode


def prepared_share(
    result: Result, *, gpu: Gpu, policy: GpuPolicy, now: Mode | None, context_estimate_bytes: int
) -> PreparedShare:
    """The share of `gpu` for `result`; `now` is the mode of the shares that it holds. Raises Refused."""
    whole = (
        result.memory_bytes >= shareable_bytes(gpu, reserve_bytes=policy.reserve_bytes)
        and result.cores_percent >= CORES
    )
    if result.sharing == modes.EXCLUSIVE and not whole:
        raise Refused(
            f"sharing: exclusive asks for all of device {result.device}, but the claim consumed "
            f"{result.memory_bytes} bytes and {result.cores_percent} cores of it: ask for all of both"
        )
    mode = held.of_gpu(policy, now)
    if not whole and (refusal := held.refusal(result.sharing, device=result.device, mode=mode)):
        raise Refused(refusal)
    return PreparedShare(
        share=result.share,
        request=result.request,
        pool=result.pool,
        device=result.device,
        gpu_uuid=gpu.uuid,
        whole=whole,
        memory_bytes=result.memory_bytes,
        cores_percent=result.cores_percent,
        shares=result.shares,
        sharing=str(modes.SHIM if whole or mode == modes.EXCLUSIVE else mode),
        context_estimate_bytes=context_estimate_bytes,
        class_over_quota=str(result.class_over_quota or ""),
        claim_over_quota=str(result.claim_over_quota or ""),
        class_compute_policy=str(result.class_compute_policy or ""),
        claim_compute_policy=str(result.claim_compute_policy or ""),
        priority=str(result.priority or ""),
    )


def refuse_several_of_mps(shares: Sequence[PreparedShare]) -> None:
    """A program talks to one MPS daemon, and each GPU has its own. Raises Refused."""
    requests = [share.request for share in shares if held.mode_of(share) == modes.MPS]
    for request in requests:
        if requests.count(request) > 1:
            raise Refused(
                f"request {request} has MPS shares of {requests.count(request)} GPUs, and a container can "
                "use one of them: ask for one GPU per request, or for another way of sharing"
            )
