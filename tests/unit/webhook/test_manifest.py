# SPDX-License-Identifier: Apache-2.0
"""The manifests say what the code says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot_api import names
from aliquot_webhook.app import create_app
from aliquot_webhook.pods import HAMI_OPT_OUT
from aliquot_webhook.policy import Policy
from aliquot_webhook.settings import NAME, SECRET, CommonSettings, Settings

FOLDER = Path(__file__).parents[3] / "deploy" / "manifests"


def manifest(kind: str, file: str = "webhook.yaml") -> Any:
    (found,) = [each for each in yaml.safe_load_all((FOLDER / file).read_text()) if each["kind"] == kind]
    return found


@pytest.fixture
def webhook() -> Any:
    configuration = manifest("MutatingWebhookConfiguration")
    assert configuration["metadata"]["name"] == NAME
    (webhook,) = configuration["webhooks"]
    return webhook


def test_every_handled_resource_brings_a_pod_to_us_wherever_it_stands(webhook: Any) -> None:
    (condition,) = webhook["matchConditions"]
    for name in Policy().resources.all():
        assert condition["expression"].count(f'"{name}"') == 4  # containers and pod, limits and requests
    assert f'"{names.REQUEST_ANNOTATION}"' in condition["expression"]


def test_opting_in_and_out(webhook: Any) -> None:
    assert webhook["namespaceSelector"] == {"matchLabels": {names.INJECT_LABEL: names.INJECT_ENABLED}}
    opted_out = {
        (each["key"], *each["values"]): each["operator"]
        for each in webhook["objectSelector"]["matchExpressions"]
    }
    assert opted_out == {(names.INJECT_LABEL, names.INJECT_DISABLED): "NotIn", HAMI_OPT_OUT: "NotIn"}


def test_it_fails_closed_and_is_honest_about_side_effects(webhook: Any) -> None:
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "NoneOnDryRun"
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    assert webhook["timeoutSeconds"] > Settings().api_timeout_s


def test_it_is_called_where_it_serves(webhook: Any) -> None:
    service = webhook["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" == CommonSettings().hosts[0]
    app = create_app(reviewer=None, metrics=None, not_ready=list)  # type: ignore[arg-type] # routes only
    paths = {rule.rule for rule in app.url_map.iter_rules()}
    containers = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    probes = [containers[0][probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
    assert {service["path"], *probes} <= paths
    assert containers[0]["ports"][0]["containerPort"] == Settings().port
    assert [each["command"] for each in containers] == [["aliquot-webhook"], ["aliquot-controller"]]


def test_permissions_are_for_our_objects(webhook: Any) -> None:
    rules = {tuple(rule["resources"]): rule for rule in manifest("ClusterRole")["rules"]}
    assert rules[("deviceclasses",)]["resourceNames"] == [names.DEVICE_CLASS]
    assert rules[("mutatingwebhookconfigurations",)]["resourceNames"] == [NAME]
    assert [rule.get("resourceNames") for rule in manifest("Role")["rules"]] == [None, [SECRET]]
    verbs = {verb for rule in rules.values() for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch", "create", "patch", "delete"}


def test_the_class_leaves_other_drivers_and_oversubscribed_gpus_out() -> None:
    device_class = manifest("DeviceClass", "deviceclass.yaml")
    assert device_class["metadata"]["name"] == names.DEVICE_CLASS
    assert "extendedResourceName" not in device_class["spec"]
    (selector,) = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        f'device.driver == "{names.DRIVER}" && device.attributes["{names.DRIVER}"].oversubscribed == false'
    )
