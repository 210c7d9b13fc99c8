# SPDX-License-Identifier: Apache-2.0
"""Ways of sharing: which claims a GPU takes, what containers are told, and the simulated MPS daemon."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aliquot_agent import cdi, held, sharedir
from aliquot_agent.errors import Refused, ToolFailed
from aliquot_agent.mps import Daemon
from aliquot_agent.nodepolicy import GpuPolicy
from aliquot_agent.smi import DriverTool
from aliquot_api import modes
from aliquot_api.config import Sharing, TimeSlice
from aliquot_api.modes import Mode
from aliquot_api.names import DRIVER
from tests.unit.agent.kit import Node, build_device, make_claim, make_gpu, result

SIM = Path(__file__).resolve().parents[3] / "build" / "sim"
SHORT = Mode(Sharing.TIMESLICE, TimeSlice.SHORT)


def wishing(mode: Mode) -> list[dict[str, Any]]:
    """The configuration of a claim that wishes `mode`."""
    opaque = {"driver": DRIVER, "parameters": mode.config().encode()}
    return [{"source": "FromClaim", "requests": [], "opaque": opaque}]


def configure(node: Node, mode: Mode) -> None:
    node.gpus.policy = replace(node.gpus.policy, defaults=GpuPolicy(sharing=mode))


def edits(node: Node, uid: str) -> Mapping[str, Any]:
    spec: Any = json.loads(cdi.spec_path(node.cdi_dir, uid).read_text())
    (device,) = spec["devices"]
    found: Mapping[str, Any] = device["containerEdits"]
    return found


def test_a_container_under_mps_is_told_its_limits(node: Node) -> None:
    gpu = node.gpus.gpus[0]
    configure(node, modes.MPS)
    share = result(gpu, memory="8000Mi", cores="30")
    ref = node.server.add(make_claim(share, config=wishing(modes.MPS)))
    node.claims().prepare(ref)
    told = edits(node, ref.uid)
    assert sorted(told["env"]) == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8000M",
        "CUDA_MPS_PIPE_DIRECTORY=/run/aliquot/mps",
    ]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in told["mounts"]}
    assert mounts["/run/aliquot/mps"] == str(node.root / "run" / "mps" / gpu.uuid / "pipe")
    assert mounts["/dev/shm"] == "/dev/shm/aliquot-mps"
    with sharedir.ShareFiles(path=node.claims_dir / ref.uid / share["shareID"]) as opened:
        assert opened.quota().cores_millipercent == 0, "nothing is paced"
        assert opened.quota().memory_limit_bytes == 8000 << 20


@pytest.mark.parametrize(
    ("offered", "wish", "says"),
    [
        pytest.param(modes.SHIM, modes.MPS, 'sharing == "mps"', id="mps on shim"),
        pytest.param(modes.MPS, modes.SHIM, "ShareConfig say mps", id="shim on mps"),
        pytest.param(SHORT, Mode(Sharing.TIMESLICE, TimeSlice.LONG), 'timeSlice == "long"', id="length"),
        pytest.param(SHORT, Mode(Sharing.TIMESLICE), "", id="any length"),
        pytest.param(modes.EXCLUSIVE, modes.SHIM, "", id="configured meanwhile"),
    ],
)
def test_a_claim_on_a_gpu_of_another_way_is_refused_with_the_fix(
    node: Node, offered: Mode, wish: Mode, says: str
) -> None:
    configure(node, offered)
    ref = node.server.add(make_claim(result(node.gpus.gpus[0]), config=wishing(wish)))
    if not says:
        node.claims().prepare(ref)
        return
    with pytest.raises(Refused, match="let its request select such GPUs") as caught:
        node.claims().prepare(ref)
    assert says in str(caught.value)
    assert node.leftovers() == []


def test_a_container_has_mps_on_one_gpu(node: Node) -> None:
    configure(node, modes.MPS)
    shares = [result(gpu, request="main") for gpu in node.gpus.gpus]
    with pytest.raises(Refused, match="one GPU per request"):
        node.claims().prepare(node.server.add(make_claim(*shares, config=wishing(modes.MPS))))


def test_a_gpu_shows_its_old_way_until_its_shares_are_gone(node: Node) -> None:
    gpu = node.gpus.gpus[0]
    ref = node.server.add(make_claim(result(gpu), name="old"))
    claims = node.claims()
    claims.prepare(ref)
    configure(node, SHORT)
    now = held.by_device(claims.prepared())
    policy = node.gpus.policy_of(gpu)
    assert held.of_gpu(policy, now[gpu.uuid.lower()]) == modes.SHIM
    claims.prepare(node.server.add(make_claim(result(gpu), name="like the old")))
    with pytest.raises(Refused, match="is shared by shim"):
        claims.prepare(node.server.add(make_claim(result(gpu), name="new", config=wishing(SHORT))))
    assert held.of_gpu(policy, None) == SHORT
    shown = build_device(make_gpu(), policy=policy)["attributes"]
    assert (shown["sharing"], shown["timeSlice"]) == ({"string": "timeslice"}, {"string": "short"})


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """The simulated MPS of a simulated GPU."""
    root = tmp_path / "node"
    subprocess.run([str(SIM / "aliquot-sim"), "init", "--gpu", "l4", "--root", str(root)], check=True)
    monkeypatch.setenv("ALIQUOT_SIM_ROOT", str(root))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(SIM))
    made = Daemon(gpu_uuid="0", directory=tmp_path / "mps", control=str(SIM / "nvidia-cuda-mps-control"))
    yield made
    made.stop()


def pid_of(tmp_path: Path) -> int:
    return int((tmp_path / "mps" / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def test_the_daemon_starts_dies_and_starts_again(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    assert daemon.lives()
    os.kill(pid_of(tmp_path), signal.SIGKILL)
    deadline = time.monotonic() + 20
    while daemon.lives():
        assert time.monotonic() < deadline
    daemon.stop()
    daemon.start()
    assert daemon.lives()
    daemon.stop()
    assert not daemon.lives()
    daemon.remove()
    assert not (tmp_path / "mps").exists()


def test_a_hung_daemon_is_noticed_and_ended(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    os.kill(pid_of(tmp_path), signal.SIGSTOP)
    daemon._asked_s = 0.0  # as some seconds later
    assert not daemon.lives()
    daemon.stop()
    daemon.start()
    assert daemon.lives()


def test_a_program_of_the_drivers_that_fails_is_quoted(daemon: Daemon) -> None:
    tool = DriverTool(path=str(SIM / "aliquot-smi"))
    tool.set_time_slice("0", TimeSlice.LONG)
    tool.set_exclusive("0", on=True)
    with pytest.raises(ToolFailed, match="no such GPU"):
        tool.set_exclusive("GPU-x", on=True)
