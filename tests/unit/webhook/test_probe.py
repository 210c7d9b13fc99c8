# SPDX-License-Identifier: Apache-2.0
"""What the probe says of a server."""

import threading

import pytest

from aliquot_webhook.kube import ApiError
from aliquot_webhook.loops import stop_all
from aliquot_webhook.metrics import Metrics
from aliquot_webhook.probe import Probe, ServerState, probe
from aliquot_webhook.templates import ROOT
from tests.unit.webhook.fake_api import CLASS_PATH, FakeApi


@pytest.mark.parametrize(("minor", "distinct"), [("37", True), ("36+", True), ("35", False), ("", False)])
def test_a_fit_server(minor: str, distinct: bool) -> None:
    api = FakeApi(minor=minor)
    before = dict(api.objects)

    assert probe(api, namespace="aliquot-system") == ServerState(problem=None, count_is_distinct=distinct)
    assert api.objects == before


def test_a_server_without_the_gate_is_named_with_its_gate() -> None:
    problem = probe(FakeApi(minor="35", gate=False), namespace="aliquot-system").problem

    assert problem is not None
    assert "DRAConsumableCapacity" in problem
    assert "kube-scheduler" in problem


def test_a_missing_class_is_named() -> None:
    api = FakeApi()
    del api.objects[CLASS_PATH]

    assert "DeviceClass gpu.aliquot.dev is missing" in str(probe(api, namespace="n").problem)


def test_a_server_without_the_api_is_told_from_one_without_the_class() -> None:
    api = FakeApi()

    def call(method: str, path: str, **_: object) -> dict[str, object]:
        if path == "/version":
            return {"minor": "33"}
        raise ApiError(status=404, message="the server could not find the requested resource")

    api.call = call  # type: ignore[method-assign] # an old server
    assert probe(api, namespace="n").problem == "the API server does not serve resource.k8s.io/v1"


@pytest.mark.parametrize(
    ("forbidden", "says"),
    [
        (("GET", "deviceclasses"), "not allowed to read DeviceClass"),
        (("POST", f"{ROOT}/namespaces"), "not allowed to create ResourceClaimTemplates"),
    ],
)
def test_a_missing_permission_is_named(forbidden: tuple[str, str], says: str) -> None:
    api = FakeApi()
    api.forbidden.add(forbidden)

    assert says in str(probe(api, namespace="n").problem)


def test_no_answer_is_no_state() -> None:
    api = FakeApi()
    api.down = True

    with pytest.raises(ApiError):
        probe(api, namespace="n")


@pytest.mark.parametrize(("gate", "shown"), [(True, "1.0"), (False, "0.0")])
def test_what_was_found_is_a_metric(gate: bool, shown: str) -> None:
    metrics, looked = Metrics(), threading.Event()

    def keep(state: ServerState) -> None:
        metrics.server_fits(fits=state.problem is None)
        looked.set()

    metrics.server_fits(fits=not gate)
    prober = Probe(api=FakeApi(minor="35", gate=gate), namespace="n", on_state=keep)
    prober.start()
    try:
        assert looked.wait(timeout=10)
    finally:
        stop_all(prober)
    assert f"aliquot_webhook_server_fits {shown}" in metrics.exposition().decode()
