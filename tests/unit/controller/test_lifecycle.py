# SPDX-License-Identifier: Apache-2.0
"""What the chart's hooks ask before, and clear away after."""

from collections.abc import Mapping, Sequence

import pytest

from aliquot_api import names
from aliquot_api.wire import JsonObject
from aliquot_controller import lifecycle
from aliquot_controller.settings import ControllerSettings
from aliquot_webhook.kube import ApiError, Keep, Method, whole

DRA = "/apis/resource.k8s.io/v1"
SETTINGS = ControllerSettings(namespace="here")


class Server:
    """Objects by the path of their list, and what was deleted."""

    def __init__(self, lists: Mapping[str, Sequence[JsonObject]]) -> None:
        self._lists = lists
        self.deleted: list[str] = []
        self.error: ApiError | None = None

    def call(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | Sequence[object] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        if self.error is not None:
            raise self.error
        if method == "DELETE":
            self.deleted.append(path)
            return {}
        if method == "POST":
            return {"spec": {}}  # as a server that drops the capacities
        raise ApiError(status=404, message="no such object")

    def list_all(
        self, path: str, query: Mapping[str, str], keep: Keep = whole
    ) -> tuple[list[JsonObject], str]:
        if path not in self._lists:
            raise ApiError(status=404, message="no such list")
        return [one for each in self._lists[path] if (one := keep(each)) is not None], "1"


def claim(name: str, driver: str) -> JsonObject:
    results = [{"driver": driver, "device": "d"}]
    return {
        "metadata": {"namespace": "team", "name": name},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def named(name: str, namespace: str = "team") -> JsonObject:
    return {"metadata": {"namespace": namespace, "name": name}}


def test_claims_of_ours_and_budgets_stand_against_a_removal(capsys: pytest.CaptureFixture[str]) -> None:
    claims = [claim("theirs", "gpu.nvidia.com"), claim("ours", names.DRIVER), named("waiting")]
    budgets = {f"/apis/{names.CONFIG_GROUP}/v1alpha1/aliquotbudgets": [named("budget")]}
    server = Server({f"{DRA}/resourceclaims": claims, **budgets})
    assert lifecycle.run("check-uninstall", api=server, settings=SETTINGS) == 1
    said = capsys.readouterr().err
    assert "claims in use: team/ours." in said
    assert "budgets that would be lost: team/budget." in said
    assert "helm rollback" in said


def test_nothing_stands_against_it_where_nobody_uses_a_gpu_of_ours() -> None:
    server = Server({f"{DRA}/resourceclaims": [claim("theirs", "gpu.nvidia.com"), named("waiting")]})
    assert lifecycle.run("check-uninstall", api=server, settings=SETTINGS) == 0


def test_of_many_claims_some_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server({f"{DRA}/resourceclaims": [claim(f"c{number}", names.DRIVER) for number in range(9)]})
    assert lifecycle.run("check-uninstall", api=server, settings=SETTINGS) == 1
    assert "team/c4 and 4 more" in capsys.readouterr().err


def test_a_server_that_cannot_be_asked_stands_against_a_removal(capsys: pytest.CaptureFixture[str]) -> None:
    assert lifecycle.run("check-uninstall", api=Server({}), settings=SETTINGS) == 1
    assert "check-uninstall could not be done: no such list" in capsys.readouterr().err


def test_a_server_that_drops_capacities_stands_against_an_installation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert lifecycle.run("check-install", api=Server({}), settings=SETTINGS) == 1
    assert names.CONSUMABLE_CAPACITY_GATE in capsys.readouterr().err


def test_a_dead_webhook_does_not_stand_against_the_upgrade_that_heals_it() -> None:
    server = Server({})
    server.error = ApiError(status=500, message='failed calling webhook "templates.aliquot.dev"')
    assert lifecycle.run("check-install", api=server, settings=SETTINGS) == 0


def test_what_was_made_meanwhile_is_deleted() -> None:
    lists: dict[str, list[JsonObject]] = {
        f"{DRA}/resourceclaimtemplates": [named("aliquot-x")],
        f"{DRA}/resourceslices": [{"metadata": {"name": "slice"}}],
    }
    server = Server(lists)
    assert lifecycle.run("clean-up", api=server, settings=SETTINGS) == 0
    assert server.deleted == [
        f"{DRA}/namespaces/team/resourceclaimtemplates/aliquot-x",
        "/api/v1/namespaces/here/secrets/aliquot-webhook-tls",
        "/apis/coordination.k8s.io/v1/namespaces/here/leases/aliquot-controller",
        f"{DRA}/resourceslices/slice",
    ]
