# SPDX-License-Identifier: Apache-2.0
"""Pods that could lift their limit are refused, others are not."""

import pytest

from aliquot_api.reach import beyond_its_share
from aliquot_webhook.rewrite import Refusal, rewrite
from aliquot_webhook.settings import Settings
from tests.unit.webhook.kit import L4, container, inventory, pod


def fields(spec: dict[str, object]) -> list[str]:
    """The fields of `spec` that reach beyond a share."""
    return [problem.field for problem in beyond_its_share(spec)]


@pytest.mark.parametrize(
    ("context", "field"),
    [
        pytest.param({"privileged": True}, "privileged", id="privileged"),
        pytest.param({"capabilities": {"add": ["SYS_ADMIN"]}}, "capabilities.add", id="may mount"),
        pytest.param({"capabilities": {"add": ["cap_sys_admin"]}}, "capabilities.add", id="long name"),
        pytest.param({"capabilities": {"add": ["NET_ADMIN", "ALL"]}}, "capabilities.add", id="all"),
        pytest.param({"capabilities": {"add": ["DAC_READ_SEARCH"]}}, "capabilities.add", id="any file"),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_a_container_that_could_lift_a_limit_is_named(
    kind: str, context: dict[str, object], field: str
) -> None:
    spec: dict[str, object] = {kind: [{"name": "fine"}, {"name": "a", "securityContext": context}]}
    assert fields(spec) == [f"spec.{kind}[1].securityContext.{field}"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/var",
        "/var/lib/",
        "/var/lib/aliquot",
        "/var/lib/aliquot/claims/x",
        "/run/aliquot-agent/claims",
        "/var/run/aliquot-agent",
        "/run/cdi",
        "/etc/../var/lib",
        "/sys",
    ],
)
def test_a_host_folder_that_holds_limits_is_named(path: str) -> None:
    spec: dict[str, object] = {"volumes": [{"name": "v", "hostPath": {"path": path}}]}
    assert fields(spec) == ["spec.volumes[0].hostPath.path"]


def test_agents_that_keep_their_files_elsewhere_are_guarded_there() -> None:
    spec: dict[str, object] = {"volumes": [{"name": "v", "hostPath": {"path": "/data/aliquot/lib"}}]}
    assert fields(spec) == []
    policy = Settings(guarded_dirs=("/data/aliquot",)).policy
    refused = rewrite(pod(container(vgpu="1", gpumem="1"), **spec), policy, inventory([L4]))
    assert isinstance(refused, Refusal)
    assert "spec.volumes[0].hostPath.path" in refused.message


def test_the_hosts_processes_are_out_of_reach() -> None:
    assert fields({"hostPID": True}) == ["spec.hostPID"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="empty"),
        pytest.param({"containers": None, "volumes": "x"}, id="of odd shape"),
        pytest.param({"containers": [{"securityContext": {"privileged": "true"}}]}, id="not a boolean"),
        pytest.param(
            {"containers": [{"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}]}, id="harmless"
        ),
        pytest.param({"volumes": [{"hostPath": {"path": "/var/lib/aliquots"}}]}, id="a neighbour's folder"),
        pytest.param({"volumes": [{"hostPath": {"path": "/data"}}, {"emptyDir": {}}]}, id="other folders"),
    ],
)
def test_others_are_left_alone(spec: dict[str, object]) -> None:
    assert fields(spec) == []
