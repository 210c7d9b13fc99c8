# SPDX-License-Identifier: Apache-2.0
"""What it costs to hold the cores of 128 shares, half of which launch and are held back."""

import time
from contextlib import ExitStack
from pathlib import Path

from aliquot_agent import region, sharedir
from aliquot_agent.compute import Compute
from aliquot_agent.pacing import PacedShare
from aliquot_api.config import ComputePolicy
from tests.bench.figures import Figure, at_most
from tests.unit.agent.kit import make_gpu
from tests.unit.agent.tenant import Tenant

GPUS = 8
SHARES = 128
SECONDS = 5
PERIOD_NS = 50_000_000
TARGET_PERCENT = 2.0


def cores_figures(root: Path) -> list[Figure]:
    """Holds them, without waiting for the time to pass."""
    now_ns = 10**13
    shares = []
    for number in range(SHARES):
        path, gpu = root / f"share-{number}", make_gpu(number % GPUS).uuid
        sharedir.create(path, region.Quota(gpu_uuid=gpu, memory_limit_bytes=1, cores_millipercent=5000))
        shares.append(PacedShare(("claim", str(number)), path, gpu, 5000, ComputePolicy.FAIR))
    compute = Compute(
        shares=lambda: shares,
        users=lambda: {number: share.key for number, share in enumerate(shares)},
        use=lambda *_: (),
        monotonic_ns=lambda: now_ns,
        wall_ns=lambda: now_ns,
    )
    figures = []
    with ExitStack() as stack:
        stack.callback(compute.stop)
        tenants = [Tenant(share.path) for share in shares]
        for tenant in tenants:
            stack.callback(tenant.die)
        compute.step()  # opens the files
        for what, launching in (("idle", []), ("half of them held back", tenants[: SHARES // 2])):
            took_s = 0.0
            for _ in range(SECONDS * 10**9 // PERIOD_NS):
                now_ns += PERIOD_NS
                for tenant in launching:
                    tenant.pace(last_launch_ns=now_ns, waiting_until_ns=now_ns + 5_000_000, granted_ns=now_ns)
                start_s = time.thread_time()
                compute.step()
                took_s += time.thread_time() - start_s
            name = f"hold the cores of {SHARES} shares, {what}, share of a core"
            figures.append(at_most(name, 100 * took_s / SECONDS, "%", target=TARGET_PERCENT))
    return figures
