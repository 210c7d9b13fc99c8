# SPDX-License-Identifier: Apache-2.0
"""What the agent costs: Prepare alone and in a burst, its start, its size, its rest. build/bench/agent.json.

The whole agent runs as a process on a simulated GPU, is called over its socket as kubelet does, and reads
claims from a small API server in a process of its own. The baseline, measured in the same run and by
turns, is a plugin that reads the claim and writes a CDI file (`least`). As on a node, CDI files and share
directories are on a tmpfs, checkpoints on a disk.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import grpc

from aliquot_agent.kubeletapi.dra.v1 import dra_pb2, dra_pb2_grpc
from tests.bench.agent.cores import cores_figures
from tests.bench.agent.server import ALONE, NAMESPACE, POOL, SHARES, claim_uid, kubeconfig, names
from tests.bench.figures import Figure, at_most, publish

ROOT = Path(__file__).resolve().parents[3]
SIM = ROOT / "build" / "sim"
SHIM = ROOT / "build" / "shim" / "libaliquot.so"
TMPFS = Path("/dev/shm")
GPUS = 8
BURST = 64
ROUNDS = 9
"""Bursts of each: on two processors one of them alone says little."""
REST_S = 10.0
DEADLINE_S = 60.0
PREPARE_TARGET_MS = 15.0
START_TARGET_S = 2.0
SIZE_TARGET_MIB = 110.0
REST_TARGET_PERCENT = 2.0


class Kubelet:
    """Calls a plugin over its socket and takes the time."""

    def __init__(self, socket: Path) -> None:
        wait_for(socket.is_socket, what=f"{socket}")
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self._stub: Any = dra_pb2_grpc.DRAPluginStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._channel.close()

    def prepare_ms(self, name: str) -> float:
        request = dra_pb2.NodePrepareResourcesRequest(claims=[_message(name)])
        return self._took_ms(lambda: self._stub.NodePrepareResources(request, timeout=DEADLINE_S), name)

    def unprepare_ms(self, name: str) -> float:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[_message(name)])
        return self._took_ms(lambda: self._stub.NodeUnprepareResources(request, timeout=DEADLINE_S), name)

    def burst_ms(self, names: Sequence[str]) -> list[float]:
        """Prepares all at once; how long each call took."""
        with ThreadPoolExecutor(max_workers=len(names)) as pool:
            return list(pool.map(self.prepare_ms, names))

    @staticmethod
    def _took_ms(call: Callable[[], Any], name: str) -> float:
        start = time.perf_counter()
        response = call()
        took_ms = (time.perf_counter() - start) * 1000
        if response.claims[claim_uid(name)].error:
            raise RuntimeError(response.claims[claim_uid(name)].error)
        return took_ms


def _message(name: str) -> dra_pb2.Claim:
    return dra_pb2.Claim(namespace=NAMESPACE, name=name, uid=claim_uid(name))


def wait_for(condition: Callable[[], bool], *, what: str) -> None:
    """Until the condition holds."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            raise RuntimeError(f"waited {DEADLINE_S:g} s for {what}")
        time.sleep(0.005)


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def start(stack: ExitStack, command: Sequence[object], **options: Any) -> subprocess.Popen[str]:
    """A process that ends with the stack."""
    process = subprocess.Popen([str(word) for word in command], text=True, **options)

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()

    stack.callback(end)
    return process


def reader(stream: IO[str], published: threading.Event) -> None:
    """Waits for the server's word."""
    for line in stream:
        if line.strip() == "published":
            published.set()


def least(stack: ExitStack, run: Path, config: Path) -> Kubelet:
    """The baseline, running."""
    folder = run / "least"
    folder.mkdir()
    start(stack, [sys.executable, "-m", "tests.bench.agent.least", config, folder], cwd=ROOT)
    kubelet = Kubelet(folder / "dra.sock")
    stack.callback(kubelet.close)
    return kubelet


def bursts(
    least: Kubelet, ours: Kubelet, devices: Sequence[str]
) -> tuple[list[list[float]], list[list[float]]]:
    """How long each call of each burst took, of both, by turns."""
    found: tuple[list[list[float]], list[list[float]]] = ([], [])
    for _ in range(ROUNDS):
        for kubelet, prefix, took_ms in zip((least, ours), ("least-burst", "burst"), found, strict=True):
            claims = names(devices, BURST, prefix)
            took_ms.append(kubelet.burst_ms(claims))
            for name in claims:
                kubelet.unprepare_ms(name)
    return found


def mean_and_p99(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The median burst's mean, and the 99th percentile of all calls."""
    every = [took_ms for each in rounds for took_ms in each]
    return statistics.median(map(statistics.mean, rounds)), percentile(every, 99)


def cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def size_mib(pid: int) -> float:
    """Resident size of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def measure(root: Path, run: Path) -> list[Figure]:
    """All figures; `root` is on a disk, `run` on a tmpfs."""
    sim_root = root / "sim"
    environ = {**os.environ, "LD_LIBRARY_PATH": str(SIM), "ALIQUOT_SIM_ROOT": str(sim_root)}
    tool = [str(SIM / "aliquot-sim")]
    init = [*tool, "init", "--gpu", f"l4:{GPUS}", "--node", POOL, "--root", str(sim_root)]
    subprocess.run(init, check=True, capture_output=True, timeout=DEADLINE_S)
    books = subprocess.run(
        [*tool, "books", "--json", "--root", str(sim_root)],
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    devices = [gpu["uuid"].lower() for gpu in json.loads(books.stdout)["gpus"]]
    base = root / "base"
    base.mkdir()
    listed = [*tool, "cdi", "--lib-dir", str(SIM), "--root", str(sim_root)]
    spec = subprocess.run(listed, check=True, capture_output=True, timeout=DEADLINE_S)
    (base / "sim.json").write_bytes(spec.stdout)
    with ExitStack() as stack:
        server = start(
            stack, [sys.executable, "-m", "tests.bench.agent.server"], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert server.stdout is not None
        config = root / "kubeconfig"
        config.write_text(json.dumps(kubeconfig(int(server.stdout.readline()))))
        published = threading.Event()
        threading.Thread(target=reader, args=(server.stdout, published), daemon=True).start()
        baseline = least(stack, run, config)
        least_alone = statistics.median(
            baseline.prepare_ms(name) for name in names(devices, ALONE, "least-alone")
        )

        options = {
            "node-name": POOL,
            "kubeconfig": config,
            "library": SHIM,
            "metrics-port": 0,
            "base-cdi-dirs": base,
            "base-cdi-kind": "sim.aliquot.dev/gpu",
            **{f"{name}-dir": root / name for name in ("plugin", "registry", "state")},
            **{f"{name}-dir": run / name for name in ("cdi", "run")},
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        begun = time.perf_counter()
        agent = start(
            stack, [sys.executable, "-m", "aliquot_agent", "--log-level=error", *flags], env=environ
        )
        if not published.wait(DEADLINE_S):
            raise RuntimeError("the agent published nothing")
        started_s = time.perf_counter() - begun
        kubelet = Kubelet(root / "plugin" / "dra.sock")
        stack.callback(kubelet.close)
        alone = names(devices, ALONE, "alone")
        prepare = [kubelet.prepare_ms(name) for name in alone]
        again = [kubelet.prepare_ms(name) for name in alone]
        unprepare = [kubelet.unprepare_ms(name) for name in alone]
        least_bursts, our_bursts = bursts(baseline, kubelet, devices)
        for name in names(devices, SHARES, "burst"):
            kubelet.prepare_ms(name)
        time.sleep(2)  # the watcher opens what is new
        before_s = cpu_s(agent.pid)
        time.sleep(REST_S)
        rest_percent = (cpu_s(agent.pid) - before_s) / REST_S * 100
        resident_mib = size_mib(agent.pid)
        agent.send_signal(signal.SIGTERM)
        stopping = time.perf_counter()
        agent.wait(DEADLINE_S)
        stopped_s = time.perf_counter() - stopping
    (least_mean, least_p99), (mean, p99) = map(mean_and_p99, (least_bursts, our_bursts))
    alone_ms = statistics.median(prepare)
    return [
        at_most("prepare, alone, median", alone_ms, "ms", target=PREPARE_TARGET_MS, baseline=least_alone),
        at_most("prepare again, median", statistics.median(again), "ms", target=PREPARE_TARGET_MS),
        at_most("unprepare, alone, median", statistics.median(unprepare), "ms", target=PREPARE_TARGET_MS),
        at_most(f"prepare, {BURST} at once, mean", mean, "ms", target=1.5 * least_mean, baseline=least_mean),
        at_most(f"prepare, {BURST} at once, p99", p99, "ms", target=2 * least_p99, baseline=least_p99),
        at_most("start to published slice", started_s, "s", target=START_TARGET_S),
        at_most(f"resident size with {SHARES} shares", resident_mib, "MiB", target=SIZE_TARGET_MIB),
        at_most(f"of a core with {SHARES} idle shares", rest_percent, "%", target=REST_TARGET_PERCENT),
        at_most("SIGTERM to end", stopped_s, "s", target=10),
    ]


def main() -> int:
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory(dir=TMPFS) as run:
        figures = measure(Path(root), Path(run))
        figures += cores_figures(Path(run))
    publish("agent", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
