# SPDX-License-Identifier: Apache-2.0
"""The agent's thread that holds cores, alone: for shares that were made by hand on a simulated node.

`python -m tests.testkit.holder DIRECTORY[=POLICY[,PRIORITY]]…` holds them until its standard input ends, then
prints what it knows of each as JSON. It takes what a quota says as reserved, until a line `MILLIPERCENT
DIRECTORY` says otherwise, and whose a process is from the ledgers' slots, so all has to be in one pid
namespace. `holding` runs it for a test or benchmark.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aliquot_agent import sharedir
from aliquot_agent.attribution import Key
from aliquot_agent.compute import Compute
from aliquot_agent.nvml import Nvml
from aliquot_agent.pacing import PacedShare
from aliquot_api.config import ComputePolicy, Priority

_END_S = 10


@dataclass
class Holding:
    """A running holder; `paced` once it has ended."""

    pid: int
    orders: IO[str]
    paced: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By share directory: the fields of pacing.Paced."""

    def reserve(self, share: Path, percent: float) -> None:
        """A live change of what is reserved; it counts within a second."""
        self.orders.write(f"{round(percent * 1000)} {share}\n")
        self.orders.flush()


@contextmanager
def holding(
    shares: Sequence[Path],
    *,
    environment: Mapping[str, str],
    policy: ComputePolicy = ComputePolicy.FAIR,
    high: Sequence[Path] = (),
) -> Iterator[Holding]:
    """Holds `shares`, those in `high` with high priority, on the simulated node that `environment` names."""
    words = [f"{path}={policy},{Priority.HIGH if path in high else Priority.LOW}" for path in shares]
    command = [sys.executable, "-m", "tests.testkit.holder", *words]
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "holding\n"
        holding = Holding(process.pid, process.stdin)
        try:
            yield holding
        finally:
            process.stdin.close()
            holding.paced = json.loads(process.stdout.read() or "{}")
            process.wait(_END_S)


def _share(word: str) -> PacedShare:
    directory, _, how = word.partition("=")
    policy, _, priority = how.partition(",")
    path = Path(directory)
    with sharedir.ShareFiles(path=path) as files:
        quota = files.quota()
    return PacedShare(
        key=("by hand", str(path)),
        path=path,
        gpu_uuid=quota.gpu_uuid,
        reserved_millipercent=quota.cores_millipercent,
        policy=ComputePolicy(policy or ComputePolicy.FAIR),
        priority=Priority(priority or Priority.LOW),
    )


def _users(shares: Sequence[PacedShare]) -> dict[int, Key]:
    users: dict[int, Key] = {}
    for share in shares:
        with sharedir.ShareFiles(path=share.path) as files:
            users |= {slot.pid: share.key for slot in files.ledger().slots}
    return users


def main(words: Sequence[str]) -> None:
    """Holds until standard input ends."""
    by_path = {str(share.path): share for share in map(_share, words)}
    nvml = Nvml()
    nvml.inventory()
    compute = Compute(
        shares=lambda: list(by_path.values()),
        users=lambda: _users(list(by_path.values())),
        use=lambda gpu_uuid, since_us: nvml.use(gpu_uuid, since_us=since_us),
    )
    compute.start()
    print("holding", flush=True)
    for line in sys.stdin:
        millipercent, _, path = line.strip().partition(" ")
        by_path[path] = dataclasses.replace(by_path[path], reserved_millipercent=int(millipercent))
    paced = {key[1]: dataclasses.asdict(found) for key, found in compute.paced().items()}
    compute.stop()
    print(json.dumps(paced), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
