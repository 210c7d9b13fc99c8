# SPDX-License-Identifier: Apache-2.0
"""Small pure parts: diagnoses without a cluster, resizes, reports, node configurations, completion."""

import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from aliquot_api.errors import InvalidInput
from aliquot_cli import completion, nodeconfigs, report, resize, workloads
from aliquot_cli.__main__ import COMMANDS, main, parser
from aliquot_cli.cards import Share, cards
from aliquot_cli.causes import Cause, Facts
from aliquot_cli.diagnosis import diagnose
from tests.unit.cli.kit import MIB, Object, allocated, device, request, resource_slice

SPEC = {"devices": {"requests": [request(memory="1Gi")]}}
POD: Object = {
    "metadata": {"name": "p", "namespace": "team", "uid": "u"},
    "spec": {"resourceClaims": [{"name": "aliquot", "resourceClaimTemplateName": "t"}]},
    "status": {"phase": "Pending"},
}
CLAIM: Object = {"metadata": {"name": "c", "namespace": "team"}, "spec": SPEC, "status": {}}
FOUND: dict[str, Any] = {
    "specs": {"aliquot": SPEC},
    "claims": {"aliquot": CLAIM},
    "classes": {"gpu.aliquot.dev": ()},
    "nodes": [{"metadata": {"name": "n1"}}],
    "cards": cards([resource_slice("n1", device())], []),
    "agents": {"n1": True},
}


def changed(**spec: object) -> Object:
    return {**POD, "spec": {**POD["spec"], **spec}}


@pytest.mark.parametrize(
    ("pod", "change", "cause"),
    [
        pytest.param(POD, {}, Cause.FITS, id="room"),
        pytest.param(POD, {"gate_problem": "dropped"}, Cause.GATE_OFF, id="gate"),
        pytest.param(POD, {"cards": ()}, Cause.NO_GPUS, id="no GPUs"),
        pytest.param(POD, {"claims": {}}, Cause.CLAIM_PENDING, id="the claim is on its way"),
        pytest.param(changed(schedulerName="mine"), {}, Cause.FOREIGN_SCHEDULER, id="another scheduler"),
        pytest.param(changed(nodeName="n1"), {}, Cause.FOREIGN_SCHEDULER, id="a node by hand"),
        pytest.param(
            changed(nodeName="n1"),
            {"claims": {"aliquot": allocated("c", memory="1Gi")}},
            Cause.STARTING,
            id="starting",
        ),
        pytest.param(
            changed(resourceClaims=[]), {"specs": {}, "claims": {}}, Cause.NO_GPU_WANTED, id="no GPU wanted"
        ),
        pytest.param({**POD, "status": {"phase": "Succeeded"}}, {}, Cause.ENDED, id="ended"),
    ],
)
def test_causes_that_need_no_cluster(pod: Object, change: dict[str, Any], cause: Cause) -> None:
    found = diagnose(Facts(pod=pod, **{**FOUND, **change}))
    assert [each.cause for each in found.findings] == [cause]


def test_a_claim_that_is_allocated_elsewhere_pins_the_pod() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
    claim = {
        **CLAIM,
        "status": {"allocation": {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}},
    }
    found = diagnose(Facts(pod=POD, **{**FOUND, "claims": {"aliquot": claim}}))
    assert [each.cause for each in found.findings] == [Cause.NODE]
    assert "claim c is allocated on another node" in found.findings[0].what


@pytest.mark.parametrize(
    ("now", "container", "written"),
    [
        ("", None, "3Gi"),
        ("a=1Gi", None, "3Gi"),
        ("", "a", "a=3Gi"),
        ("a=1Gi, b=2Gi", "a", "a=3Gi,b=2Gi"),
        ("8Gi", "a", "a=3Gi,b=8Gi"),
    ],
)
def test_the_annotation_of_a_resize(now: str, container: str | None, written: str) -> None:
    assert resize.annotation(now, "3Gi", container, containers=["a", "b"]) == written


def test_a_container_that_has_no_gpu_cannot_be_resized() -> None:
    with pytest.raises(InvalidInput, match="want one of a, b"):
        resize.annotation("8Gi", "3Gi", "c", containers=["a", "b"])


def share(limit: int, reason: str) -> Share:
    mark = {"type": "Resized", "status": "False", "reason": reason, "message": "why"}
    claim = allocated("a", data={"limit": limit * MIB}, conditions=[mark], memory="100Mi")
    [card] = cards([], [claim])
    return card.shares[0]


@pytest.mark.parametrize(
    ("limit", "reason", "wanted", "before", "is_done"),
    [
        (200, "Applied", 200 * MIB, {}, True),
        (100, "Applied", None, {}, True),
        (100, "Pending", 200 * MIB, {}, None),
        (100, "NoRoom", 200 * MIB, {}, False),
        (100, "NoRoom", 200 * MIB, {"share-of-a": ("NoRoom", "why")}, None),
    ],
)
def test_a_resize_is_judged_by_its_condition(
    limit: int, reason: str, wanted: int | None, before: dict[str, tuple[str, str]], is_done: bool | None
) -> None:
    verdict = resize.judge([share(limit, reason)], wanted, before)
    assert (verdict and verdict[0]) is is_done


def test_a_report_counts_what_is_held_and_not_used() -> None:
    claims = [
        allocated("a", data={"limit": 100 * MIB, "used": 25 * MIB}, memory="100Mi"),
        allocated("b", memory="50Mi"),
    ]
    [row] = report.at_once(cards([resource_slice("n1", device())], claims))
    assert (row.namespace, row.allocated_bytes, row.wasted_bytes) == ("team", 150 * MIB, 125 * MIB)
    assert report.as_csv([row]).splitlines()[1] == f"team,{150 * MIB},{25 * MIB},{125 * MIB},0.0"
    assert "83%" in report.render([row])


class _Prometheus(BaseHTTPRequestHandler):
    """Answers a range as Prometheus' HTTP API documents it."""

    def do_GET(self) -> None:
        value = "100" if "limit_bytes" in self.path else "40"
        body = (
            '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"namespace":"team"},'
            f'"values":[[1,"{value}"],[2,"{value}"]]}}]}}}}'
        )
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_report_over_time_is_read_from_prometheus(capsys: pytest.CaptureFixture[str]) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Prometheus)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        words = [
            "report",
            "--since",
            "200h",
            "-o",
            "csv",
            "--prometheus",
            f"http://127.0.0.1:{server.server_port}",
        ]
        assert main(words) == 0
    finally:
        server.shutdown()
        server.server_close()
    assert capsys.readouterr().out.splitlines()[1] == "team,100,40,60,2.0"


@pytest.mark.parametrize("since", ["", "0h", "24", "1y", "-1h"])
def test_a_time_needs_its_unit(since: str) -> None:
    with pytest.raises(InvalidInput, match="such as 24h"):
        report.duration_s(since)


def test_a_gpu_is_taken_out_of_the_node_configuration_and_put_back() -> None:
    uuid = "GPU-1b2c3d4e-0000-1111-2222-333344445555"
    own = "apiVersion: aliquot.dev/v1alpha1\nkind: NodeConfig\ndefaults: {shares: 4}\n"
    without = nodeconfigs.unpublished(own, "n1", uuid)
    assert "publish: false" in without
    assert "shares: 4" in without
    back = nodeconfigs.published(without, uuid[:12])
    assert "publish" not in back
    assert "shares: 4" in back
    assert nodeconfigs.published(own, uuid) == own
    assert "publish: false" in nodeconfigs.unpublished("", "n1", uuid)
    with pytest.raises(InvalidInput):
        nodeconfigs.unpublished("not: ours", "n1", uuid)


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["p"], ("pod", "p")),
        (["pod", "p"], ("pod", "p")),
        (["pods/p"], ("pod", "p")),
        (["deploy/d"], ("deployment", "d")),
        (["Deployment", "d"], ("deployment", "d")),
        (["sts/s"], ("statefulset", "s")),
    ],
)
def test_targets(words: list[str], target: tuple[str, str]) -> None:
    assert workloads.read_target(words) == target


@pytest.mark.parametrize("words", [["node/n"], ["pod/"], ["a", "b", "c"]])
def test_what_is_no_target_is_refused(words: list[str]) -> None:
    with pytest.raises(InvalidInput, match="want NAME of a pod"):
        workloads.read_target(words)


def test_a_manifest_gives_its_pods_and_its_claims() -> None:
    written = """
kind: CronJob
metadata: {name: nightly}
spec: {jobTemplate: {spec: {template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c}]}}}}}
---
kind: ResourceClaimTemplate
metadata: {name: t}
spec: {spec: {devices: {}}}
"""
    [pod], known = workloads.read_manifest(written, namespace="team")
    assert pod["metadata"] == {"namespace": "team", "generateName": "nightly-", "labels": {"a": "b"}}
    assert known == {"t": {"devices": {}}}
    for nothing in ("", "kind: Service", "a: [", "- 1"):
        with pytest.raises(InvalidInput):
            workloads.read_manifest(nothing, namespace="team")


def test_bash_completes_commands_verbs_and_options() -> None:
    script = completion.script("bash", parser())
    ask = 'COMP_WORDS=(aliquot %s); COMP_CWORD=%d; _aliquot; echo "${COMPREPLY[@]}"'

    def completed(*words: str) -> list[str]:
        line = ask % (" ".join(words), len(words))
        done = subprocess.run(
            ["bash", "-c", f"{script}\n{line}"], capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout.split()

    assert set(completed("''")) == set(COMMANDS)
    assert completed("ex") == ["explain"]
    assert completed("budget", "s") == ["show", "set"]
    assert completed("run", "--mem") == ["--memory"]
    assert completed("docker", "r") == ["run"]
    assert completion.script("zsh", parser()).startswith("#compdef aliquot")


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"    {name}" in shown for name in COMMANDS)
