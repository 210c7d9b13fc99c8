# SPDX-License-Identifier: Apache-2.0
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aliquot_agent import pages
from aliquot_agent.__main__ import main
from aliquot_agent.attribution import Key
from aliquot_agent.hamimetrics import HamiCollector
from aliquot_agent.hardware import Cause, LeftOut
from aliquot_agent.health import Condition, Fault
from aliquot_agent.metrics import AgentCollector, Metrics, Sources, User
from aliquot_agent.nvml import Load
from aliquot_agent.pacing import Paced
from aliquot_agent.pages import PageServer
from aliquot_agent.picture import Observation, Picture
from aliquot_agent.readiness import Readiness
from aliquot_agent.status import Status, table
from tests.unit.agent.kit import GIB, Node, make_claim, make_gpu, result, wait_for
from tests.unit.agent.test_report import LIMIT, observation

ROOT = Path(__file__).resolve().parents[3]


class Scene:
    """The agent's pages on a free port of loopback."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.readiness = Readiness()
        self.conditions: dict[str, Condition] = {}
        self.left_out: tuple[LeftOut, ...] = ()
        self.problem = ""
        self.paced: dict[Key, Paced] = {}
        self.untold: frozenset[str] = frozenset()
        gpu = make_gpu(uuid="GPU-a")
        sources = Sources(
            node="node-1",
            picture=lambda: self.picture,
            users=self.users,
            gpus=lambda: {"gpu-a": gpu},
            loads=lambda: {"GPU-a": Load(used_bytes=9, busy_percent=40, memory_busy_percent=3)},
            offered_bytes=lambda: {"gpu-a": 20 * GIB},
            conditions=lambda: self.conditions,
            left_out=lambda: self.left_out,
            slice_writes=lambda: {"create": 1, "replace": 2},
            config_problem=lambda: self.problem,
            paced=lambda: self.paced,
            untold=lambda: self.untold,
            mps_lost=lambda: {"GPU-a": 2},
        )
        self.metrics = Metrics()
        self.metrics.register(AgentCollector(sources))
        self.metrics.register(HamiCollector(sources))
        self.status = Status(sources=sources, readiness=self.readiness, leader=lambda: True)
        shown = {"/metrics": self.metrics.page, "/status": self.status.page}
        self.server = PageServer(port=0, pages=shown, readiness=self.readiness)
        self.server.start()

    @staticmethod
    def users(seen: Observation) -> list[User]:
        return [User("team-a", "pod-1", "main", 0), User("team-a", "pod-2", "main", 0)]

    @staticmethod
    def connections() -> int:
        return sum("process_request_thread" in thread.name for thread in threading.enumerate())

    def get(self, path: str, *, host: str = "127.0.0.1") -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{host}:{self.server.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.server.stop()


def samples(text: str) -> dict[str, tuple[dict[str, str], float]]:
    """Samples of an exposition by name; the last one where there are several."""
    return {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_series_carry_the_claim_and_end_with_it(scene: Scene) -> None:
    seen = observation("u", used=5, denied=7)
    scene.picture = Picture(observations=(seen,), unaccounted=(("GPU-a", 1),))
    found = samples(scene.get("/metrics")[1])
    gpu = {"gpu_uuid": "GPU-a"}
    names = {"claim": "claim-u", "request": "main", "share": "share-u"}
    share = {**gpu, "namespace": "team-a", "pod": "pod-1,pod-2", "container": "main", **names}
    expected = {
        "aliquot_share_memory_limit_bytes": (share, LIMIT),
        "aliquot_share_memory_used_bytes": (share, 5),
        "aliquot_share_memory_peak_bytes": (share, 5),
        "aliquot_share_processes": (share, 0),
        "aliquot_share_denied_total": (share, 7),
        "aliquot_gpu_memory_bytes": (gpu, 24 * GIB),
        "aliquot_gpu_memory_allocated_bytes": (gpu, LIMIT),
        "aliquot_gpu_memory_published_bytes": (gpu, 20 * GIB),
        "aliquot_gpu_memory_free_bytes": (gpu, 20 * GIB - LIMIT),
        "aliquot_gpu_memory_used_bytes": (gpu, 9),
        "aliquot_gpu_utilization_percent": (gpu, 40),
        "aliquot_gpu_healthy": (gpu, 1),
        "aliquot_gpu_shares": (gpu, 1),
        "aliquot_unaccounted_processes": (gpu, 1),
        "aliquot_gpu_mps_daemon_lost_total": (gpu, 2),
    }
    assert {name: found[name] for name in expected} == expected

    scene.picture = Picture()
    found = samples(scene.get("/metrics")[1])
    assert not [name for name in found if name.startswith("aliquot_share_")]
    assert found["aliquot_gpu_shares"] == (gpu, 0)


def test_readiness_says_what_is_wrong(scene: Scene) -> None:
    assert scene.get("/readyz") == (200, '{"ready": true, "reasons": {}}\n')
    scene.readiness.refuse("slices", "gate off")
    status, text = scene.get("/readyz")
    assert (status, json.loads(text)) == (503, {"ready": False, "reasons": {"slices": "gate off"}})
    scene.readiness.allow("slices")
    assert scene.get("/readyz")[0] == 200


def test_it_lives_and_knows_its_paths(scene: Scene) -> None:
    assert scene.get("/healthz") == (200, "ok\n")
    assert scene.get("/else")[0] == 404


def test_the_pages_are_there_over_ipv6_as_well(scene: Scene) -> None:
    assert scene.get("/healthz", host="[::1]") == (200, "ok\n")


def test_callers_that_hold_connections_do_not_keep_kubelet_out(scene: Scene) -> None:
    held = [
        socket.create_connection(("127.0.0.1", scene.server.port), timeout=10)
        for _ in range(2 * pages.MOST_CONNECTIONS)
    ]
    try:
        assert scene.get("/healthz") == (200, "ok\n")
        assert held[0].recv(1) == b""  # the oldest was sent away
        wait_for(lambda: scene.connections() <= pages.MOST_CONNECTIONS)
        held[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert held[-1].recv(100).startswith(b"HTTP/1.0 200")
    finally:
        for each in held:
            each.close()


def test_what_is_sick_left_out_or_not_understood_is_in_the_metrics(scene: Scene) -> None:
    scene.conditions = {"GPU-a": Condition(fault=Fault.XID, detail="xid-79", since="2026-01-02T03:04:05Z")}
    scene.left_out = (LeftOut(3, "GPU-d", Cause.OWNED, "a device plugin hands it out"),)
    scene.problem = "shares: invalid value"
    found = samples(scene.get("/metrics")[1])
    assert found["aliquot_gpu_healthy"] == ({"gpu_uuid": "GPU-a"}, 0)
    left_out = {"index": "3", "gpu_uuid": "GPU-d", "cause": "owned"}
    assert found["aliquot_gpu_left_out"] == (left_out, 1)
    assert found["aliquot_node_config_invalid"] == ({}, 1)
    assert found["aliquot_slice_writes_total"] == ({"verb": "replace"}, 2)


def test_hamis_names_say_the_same(scene: Scene) -> None:
    scene.picture = Picture(observations=(observation("u", used=5),))
    text = scene.get("/metrics")[1]
    found = samples(text)
    container = {
        "namespace": "team-a",
        "pod": "pod-2",
        "container": "main",
        "vdevice_index": "0",
        "device_uuid": "GPU-a",
    }
    gpu = {"node": "node-1", "device_uuid": "GPU-a", "device_index": "0", "device_type": "NVIDIA L4"}
    assert found["hami_vgpu_memory_used_bytes"] == (container, 5)
    assert found["hami_vgpu_memory_limit_bytes"] == (container, LIMIT)
    assert found["hami_host_gpu_memory_used_bytes"] == (gpu, 9)
    assert found["hami_host_gpu_utilization_ratio"] == (gpu, 40)
    assert found["hami_gpu_memory_limit_bytes"] == (gpu, 20 * GIB)
    assert found["hami_gpu_shared_count"] == (gpu, 1)
    assert found["hami_gpu_memory_allocated_bytes"] == ({**gpu, "device_cores": "0"}, LIMIT)
    assert found["hami_node_gpu_memory_allocated_ratio"][1] == pytest.approx(100 * LIMIT / (20 * GIB))
    assert text.count("hami_vgpu_memory_used_bytes{") == 2
    scene.picture = Picture()
    assert "hami_vgpu_memory_used_bytes{" not in scene.get("/metrics")[1]


def test_gpu_time_is_counted_by_share(scene: Scene) -> None:
    scene.picture = Picture(observations=(observation("u", used=5), observation("v", used=5)))
    scene.paced["u", "share-u"] = Paced(
        used_ns=2_500_000_000,
        granted_ns=5_000_000_000,
        reserved_millipercent=30_000,
        lent_millipercent=70_000,
        factor_ppm=500_000,
        escape="so much",
    )
    text = scene.get("/metrics")[1]
    found = {
        name: value for name, (labels, value) in samples(text).items() if labels.get("share") == "share-u"
    }
    expected = {
        "aliquot_share_gpu_used_seconds_total": 2.5,
        "aliquot_share_gpu_granted_seconds_total": 5,
        "aliquot_share_cores_percent": 30,
        "aliquot_share_cores_lent_percent": 70,
        "aliquot_share_cost_factor": 0.5,
        "aliquot_share_pacing_escaped": 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert samples(text)["aliquot_gpu_use_by_process"][1] == 1
    scene.untold = frozenset({"GPU-a"})
    assert samples(scene.get("/metrics")[1])["aliquot_gpu_use_by_process"][1] == 0


def test_the_page_on_metrics_lists_them_all(scene: Scene) -> None:
    scene.picture = Picture(observations=(observation("u", used=5),))
    found = {family.name for family in text_string_to_metric_families(scene.get("/metrics")[1])}
    names = {name for name in found if not name.endswith("_created")}  # the exposition's own
    page = (ROOT / "docs/metrics.md").read_text()
    assert {name for name in names if f"`{name}" not in page} == set()
    listed = set(re.findall(r"^\| `((?:aliquot|hami)_\w+)`", page, re.MULTILINE))
    assert {name.removesuffix("_total") for name in listed} == names


def test_the_status_is_a_table_and_json(scene: Scene) -> None:
    scene.picture = Picture(observations=(observation("u", used=5),))
    scene.left_out = (LeftOut(3, "", Cause.MIG, "MIG mode is on"),)
    scene.readiness.refuse("slices", "API server: no answer")
    document = json.loads(scene.get("/status")[1])
    assert document == scene.status.document()
    assert document["shares"][0]["pods"] == ["pod-1/main", "pod-2/main"]
    text = table(document)
    assert "node node-1: not ready" in text
    assert "slices: API server: no answer" in text
    [gpu] = [line for line in text.splitlines() if "GPU-a" in line and "NVIDIA L4" in line]
    assert gpu.split()[-4:] == ["24576Mi", "20480Mi", "1", "ok"]
    assert "left out: MIG mode is on" in text
    assert "pod-1/main,pod-2/main" in text


def test_the_command_prints_what_the_agent_knows(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{scene.server.port}/status"
    assert main(["status", "--url", url]) == 0
    assert "NVIDIA L4" in capsys.readouterr().out
    scene.readiness.refuse("nvml", "driver is reloading")
    assert main(["status", "--json", "--url", url]) == 1
    assert json.loads(capsys.readouterr().out)["notReady"] == {"nvml": "driver is reloading"}


def test_without_an_agent_the_command_prints_the_checkpoints(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    node.claims().prepare(ref)
    (node.checkpoint_dir / "spoilt.json").write_text("{")
    nobody = ["--url", "http://127.0.0.1:9/status", "--plugin-dir", str(node.checkpoint_dir.parent)]
    assert main(["status", *nobody]) == 1
    said = capsys.readouterr().out
    assert "no agent answers" in said
    assert "8000Mi" in said
    assert (node.checkpoint_dir / "spoilt.json").exists()
