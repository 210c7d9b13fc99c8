# SPDX-License-Identifier: Apache-2.0
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aliquot_agent.metrics import AgentCollector, Metrics, MetricsServer
from aliquot_agent.readiness import Readiness
from aliquot_agent.watcher import Picture
from tests.unit.agent.kit import GIB, make_gpu
from tests.unit.agent.test_report import LIMIT, observation


class Scene:
    """A metrics server on a free port of loopback."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.readiness = Readiness()
        gpu = make_gpu(uuid="GPU-a")
        metrics = Metrics()
        metrics.register(AgentCollector(picture=lambda: self.picture, gpus=lambda: {"gpu-a": gpu}))
        self.server = MetricsServer(port=0, metrics=metrics, readiness=self.readiness)
        self.server.start()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}{path}", timeout=10) as answer:
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
    share = {**gpu, "namespace": "team-a", "claim": "claim-u", "request": "main", "share": "share-u"}
    expected = {
        "aliquot_share_memory_limit_bytes": (share, LIMIT),
        "aliquot_share_memory_used_bytes": (share, 5),
        "aliquot_share_memory_peak_bytes": (share, 5),
        "aliquot_share_processes": (share, 0),
        "aliquot_share_denied_total": (share, 7),
        "aliquot_gpu_memory_bytes": (gpu, 24 * GIB),
        "aliquot_gpu_memory_allocated_bytes": (gpu, LIMIT),
        "aliquot_gpu_shares": (gpu, 1),
        "aliquot_unaccounted_processes": (gpu, 1),
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
