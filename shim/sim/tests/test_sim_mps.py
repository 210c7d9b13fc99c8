# SPDX-License-Identifier: Apache-2.0
"""MPS: the control program's commands, shares of the SMs, one fault domain, and what a lost daemon means."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shim.sim.tests.simnode import MIB, Node, Probe, wait_until
from shim.sim.tests.test_sim_compute import function, launch, load, made, milliseconds

ILLEGAL_ADDRESS, RPC_FAILURE, SERVER_NOT_READY, CONNECTION_FAILED = 700, 806, 807, 805
UNAVAILABLE, OUT_OF_MEMORY = 46, 2


@dataclass
class Mps:
    """One daemon with its directories."""

    node: Node
    root: Path

    @property
    def pipe(self) -> Path:
        return self.root / "pipe"

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        environment = self.node.environment(
            CUDA_MPS_PIPE_DIRECTORY=str(self.pipe), CUDA_MPS_LOG_DIRECTORY=str(self.root / "log")
        )
        return subprocess.run(
            [str(self.node.build / "nvidia-cuda-mps-control"), *arguments],
            env=environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def say(self, command: str) -> str:
        done = self.run(given=command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def client(self, *, uid: int = 0, **variables: str) -> Probe:
        """A program that finds the daemon."""
        settings = [f"{name}={value}" for name, value in variables.items()]
        user = ["setpriv", f"--reuid={uid}", "--clear-groups"] if uid else []
        return self.node.probe(*user, "env", f"CUDA_MPS_PIPE_DIRECTORY={self.pipe}", *settings)

    @property
    def pid(self) -> int:
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def stop(self) -> None:
        if self.run(given="quit -f").returncode == 0:
            wait_until(lambda: not (self.pipe / "control").exists(), "the daemon to end")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that other users find their way to."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def node(build: Path, open_path: Path) -> Iterator[Node]:
    node = Node(root=open_path / "node", build=build)
    node.init("l4")
    yield node
    for probe in node.probes:
        if probe.popen.poll() is None:
            probe.kill()


@pytest.fixture
def mps(node: Node, open_path: Path) -> Iterator[Mps]:
    """A daemon for clients of all users; the GPU is its own."""
    daemon = Mps(node, open_path)
    assert smi(node, "-c", "EXCLUSIVE_PROCESS") == ""
    started = daemon.run("-d", "-M")
    assert started.returncode == 0, started.stderr
    try:
        wait_until((daemon.pipe / "nvidia-cuda-mps-control.pid").exists, "the daemon to begin")
        yield daemon
    finally:
        daemon.stop()


def smi(node: Node, *arguments: str, fails: bool = False) -> str:
    command = [str(node.build / "aliquot-smi"), *arguments]
    done = subprocess.run(
        command, env=node.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr.strip() if fails else done.stdout.strip()


def test_the_time_slice_is_set_as_with_nvidia_smi(node: Node) -> None:
    uuid = node.gpu()["uuid"]
    for number, name in enumerate(("Default", "Short", "Medium", "Long")):
        assert smi(node, "compute-policy", "-i", uuid, "--set-timeslice", str(number)) == ""
        assert smi(node, "compute-policy", "-l") == f"GPU 0: Time-slice: {name}"
    assert "want 0 (default)" in smi(node, "compute-policy", "--set-timeslice", "4", fails=True)
    assert "no such GPU" in smi(node, "compute-policy", "-i", "GPU-x", "--set-timeslice", "1", fails=True)
    assert smi(node, "compute-policy", "-l") == "GPU 0: Time-slice: Long"


def test_the_control_program_has_the_commands(mps: Mps) -> None:
    assert mps.say("get_server_list") == ""
    assert mps.say("start_server -uid 0") == ""
    server = mps.say("get_server_list")
    assert mps.say(f"get_server_status {server}") == "ACTIVE"
    client = mps.client()
    client.start()
    assert mps.say(f"get_client_list {server}") == str(client.popen.pid)
    assert mps.say("get_default_active_thread_percentage") == "100.0"
    assert mps.say("set_default_active_thread_percentage 25") == "25.0"
    assert "Invalid" in mps.say("set_default_active_thread_percentage 0")
    assert mps.say(f"get_active_thread_percentage {server}") == "25.0"
    assert "Unrecognized command: dance" in mps.say("dance")
    assert mps.run("-d").returncode == 1, "a second daemon"
    assert mps.say("quit -t 0") == ""
    wait_until(lambda: not (mps.pipe / "control").exists(), "the daemon to end")
    assert "Cannot find MPS control daemon" in mps.run(given="get_server_list\n").stderr
    assert client.code("cuMemAlloc_v2", {"out": 0}, MIB) == RPC_FAILURE


def test_only_clients_share_an_exclusive_gpu(mps: Mps) -> None:
    first, second = mps.client(), mps.client(uid=1234)
    first.start()
    second.start()
    stranger = mps.node.probe("env", "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
    assert stranger.code("cuInit", 0) == 0
    assert stranger.code("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == UNAVAILABLE


def busy_ms(probe: Probe, kernel: int) -> float:
    """Time that ten kernels of 1 ms take, each as large as the GPU."""
    start, end = made(probe, "cuEventCreate"), made(probe, "cuEventCreate")
    assert launch(probe, kernel) == 0
    assert probe.code("cuEventRecord", start, 0) == 0
    assert [launch(probe, kernel) for _ in range(10)] == [0] * 10
    assert probe.code("cuEventRecord", end, 0) == 0
    assert probe.code("cuEventSynchronize", end) == 0
    return milliseconds(probe, start, end)


def test_a_client_has_its_part_of_the_multiprocessors(mps: Mps) -> None:
    probes = [mps.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percent) for percent in ("20", "50")]
    kernels = []
    for probe in probes:
        probe.start()
        kernels.append(function(probe, load(probe), "spin_50ms"))
    for probe, kernel in zip(probes, kernels, strict=True):  # both are busy at once
        assert [launch(probe, kernel) for _ in range(3)] == [0] * 3
    assert busy_ms(probes[0], kernels[0]) == pytest.approx(10 * 50 / 0.2, rel=0.01)
    assert busy_ms(probes[1], kernels[1]) == pytest.approx(10 * 50 / 0.5, rel=0.01)


def test_a_small_kernel_loses_nothing_on_a_part(mps: Mps) -> None:
    probe = mps.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    start, end = made(probe, "cuEventCreate"), made(probe, "cuEventCreate")
    assert launch(probe, kernel, blocks=1) == 0
    assert probe.code("cuEventRecord", start, 0) == 0
    assert launch(probe, kernel, blocks=1) == 0
    assert probe.code("cuEventRecord", end, 0) == 0
    assert probe.code("cuEventSynchronize", end) == 0
    assert milliseconds(probe, start, end) == pytest.approx(50, abs=1e-3)


def test_a_client_has_its_limit_of_memory(mps: Mps) -> None:
    probe = mps.client(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=100M")
    probe.start()
    probe.allocate(60 * MIB)
    assert probe.code("cuMemAlloc_v2", {"out": 0}, 41 * MIB) == OUT_OF_MEMORY
    probe.allocate(40 * MIB)
    assert mps.say("set_default_device_pinned_mem_limit 0 10M") == ""
    other = mps.client()
    other.start()
    assert other.code("cuMemAlloc_v2", {"out": 0}, 11 * MIB) == OUT_OF_MEMORY


def test_a_fault_of_one_client_is_everybodys(mps: Mps) -> None:
    guilty, innocent = mps.client(), mps.client()
    guilty.start()
    innocent.start()
    server = mps.say("get_server_list")
    assert launch(guilty, function(guilty, load(guilty), "reads_fault")) == 0
    for probe in (guilty, innocent):
        assert probe.code("cuCtxSynchronize") == ILLEGAL_ADDRESS
        assert probe.code("cuMemAlloc_v2", {"out": 0}, MIB) == ILLEGAL_ADDRESS
    assert mps.say(f"get_server_status {server}") == "FAULT"
    assert mps.client().code("cuInit", 0) == SERVER_NOT_READY
    guilty.end()
    innocent.kill()
    wait_until(lambda: mps.say(f"get_server_status {server}") == "ACTIVE", "the server to recover")
    mps.client().start()


def test_a_fault_without_mps_is_ones_own(node: Node) -> None:
    guilty, innocent = node.probe(), node.probe()
    guilty.start()
    innocent.start()
    assert launch(guilty, function(guilty, load(guilty), "reads_fault")) == 0
    assert guilty.code("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert innocent.code("cuCtxSynchronize") == 0


@pytest.mark.parametrize("victim", ["daemon", "server"])
def test_without_server_clients_fail_clearly_and_new_ones_recover(mps: Mps, victim: str) -> None:
    probe = mps.client()
    probe.start()
    server = int(mps.say("get_server_list"))
    os.kill(mps.pid if victim == "daemon" else server, signal.SIGKILL)
    wait_until(lambda: probe.code("cuMemAlloc_v2", {"out": 0}, MIB) == RPC_FAILURE, "the client to notice")
    assert probe.code("cuCtxSynchronize") == RPC_FAILURE
    probe.kill()
    if victim == "daemon":
        assert mps.run("-d", "-M").returncode == 0
    mps.client().start()
    assert mps.say("get_server_list") != str(server)


def test_users_wait_for_one_another_without_m(node: Node, open_path: Path) -> None:
    mps = Mps(node, open_path)
    assert mps.run("-d").returncode == 0
    try:
        wait_until((mps.pipe / "control").exists, "the daemon to begin")
        first = mps.client()
        first.start()
        second = mps.client(uid=1234)
        assert second.popen.stdin
        second.popen.stdin.write('["cuInit", 0]\n')
        server = mps.say("get_server_list")
        assert mps.say("get_server_list") == server
        first.end()
        assert second._answer().code == 0
        assert mps.say("get_server_list") != server
    finally:
        mps.stop()


def test_an_exclusive_gpu_that_somebody_has_takes_no_server(mps: Mps) -> None:
    holder = mps.node.probe("env", "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
    holder.start()
    assert mps.client().code("cuInit", 0) == SERVER_NOT_READY
    holder.end()
    mps.client().start()
