# SPDX-License-Identifier: Apache-2.0
"""The chart says what the code says."""

import json
from functools import cache
from typing import Any

import pytest

from aliquot_api import names
from aliquot_api.reach import CAPABILITIES
from aliquot_controller.settings import NAME as CONTROLLER
from aliquot_controller.settings import ControllerSettings
from aliquot_webhook import ledger
from aliquot_webhook.amounts import Thing
from aliquot_webhook.app import create_app
from aliquot_webhook.claims import NAME_PREFIX
from aliquot_webhook.pods import HAMI_OPT_OUT
from aliquot_webhook.policy import Policy
from aliquot_webhook.settings import NAME, SECRET, CommonSettings, Settings
from tests.testkit.chart import render

ACCOUNT = f"system:serviceaccount:{Settings().namespace}:{NAME}"


@cache
def rendered() -> list[Any]:
    return render()


def manifests(kind: str) -> list[Any]:
    return [each for each in rendered() if each["kind"] == kind]


def manifest(kind: str) -> Any:
    (found,) = manifests(kind)
    return found


def named(kind: str, name: str) -> Any:
    (found,) = [each for each in manifests(kind) if each["metadata"]["name"] == name]
    return found


@pytest.fixture
def webhook() -> Any:
    configuration = manifest("MutatingWebhookConfiguration")
    assert configuration["metadata"]["name"] == NAME
    (webhook,) = configuration["webhooks"]
    return webhook


@pytest.fixture
def validating() -> Any:
    configuration = manifest("ValidatingWebhookConfiguration")
    assert configuration["metadata"]["name"] == NAME
    return configuration["webhooks"]


def test_every_handled_resource_brings_a_pod_to_us_wherever_it_stands(webhook: Any) -> None:
    condition = webhook["matchConditions"][0]
    for name in Policy().resources.all():
        assert condition["expression"].count(f'"{name}"') == 4  # containers and pod, limits and requests
    assert f'"{names.REQUEST_ANNOTATION}"' in condition["expression"]


def test_opting_in_and_out(webhook: Any) -> None:
    selector = webhook["namespaceSelector"]
    assert selector["matchLabels"] == {names.INJECT_LABEL: names.INJECT_ENABLED}
    out_of = {
        (each["key"], *each["values"]): each["operator"]
        for each in [*webhook["objectSelector"]["matchExpressions"], *selector["matchExpressions"]]
    }
    assert out_of == {(names.INJECT_LABEL, names.INJECT_DISABLED): "NotIn", HAMI_OPT_OUT: "NotIn"}


def test_it_fails_closed_and_is_honest_about_side_effects(webhook: Any, validating: Any) -> None:
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "NoneOnDryRun"
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    assert webhook["timeoutSeconds"] > Settings().api_timeout_s
    said = {
        each["name"].partition(".")[0]: (each["failurePolicy"], each["sideEffects"]) for each in validating
    }
    assert said == {
        "claims": ("Fail", "NoneOnDryRun"),
        "templates": ("Fail", "None"),
        "resize": ("Fail", "NoneOnDryRun"),
        "pods-with-claims": ("Ignore", "None"),
        "pods-with-claims-elsewhere": ("Ignore", "None"),
        "pods-with-claims-left-to-hami": ("Ignore", "None"),
    }


def test_only_what_names_our_classes_or_driver_is_validated(validating: Any) -> None:
    for each in validating:
        assert "namespaceSelector" not in each or each["name"].startswith("pods-")  # in every namespace
        if each["name"].startswith(("claims.", "templates.")):
            expression = each["matchConditions"][-1]["expression"]
            for device_class in Settings().device_classes:
                assert expression.count(f'"{device_class}"') >= 2
            assert f'c.opaque.driver == "{names.DRIVER}"' in expression
    resize = next(each for each in validating if each["name"].startswith("resize."))
    assert names.ANNOTATION_MEMORY_LIMIT in resize["matchConditions"][0]["expression"]


def test_pods_with_claims_are_looked_at_in_each_namespace_by_one_of_three(validating: Any) -> None:
    """The first one believes what pods.aliquot.dev has written, so it may only work where that one does."""
    selectors = [
        {
            (each["key"], each["operator"], *each["values"])
            for each in found["namespaceSelector"]["matchExpressions"]
        }
        for found in validating
        if found["name"].startswith("pods-")
    ]
    opted_in = (names.INJECT_LABEL, "In", names.INJECT_ENABLED)
    assert selectors == [
        {opted_in, (HAMI_OPT_OUT[0], "NotIn", HAMI_OPT_OUT[1])},
        {(names.INJECT_LABEL, "NotIn", names.INJECT_ENABLED)},
        {opted_in, (HAMI_OPT_OUT[0], "In", HAMI_OPT_OUT[1])},
    ]


def test_our_own_templates_do_not_come_back_to_us(validating: Any) -> None:
    """A thread that waits for its own write must not need another one."""
    templates = next(each for each in validating if each["name"].startswith("templates."))
    assert templates["matchConditions"][0]["expression"] == f'request.userInfo.username != "{ACCOUNT}"'


def test_only_claims_of_the_controller_manager_from_our_templates_are_not_judged(validating: Any) -> None:
    claims = next(each for each in validating if each["name"].startswith("claims."))
    expression = claims["matchConditions"][0]["expression"]
    makers = json.dumps(list(Settings().claim_makers))
    assert expression.startswith(f"!(request.userInfo.username in {makers}")
    assert f'"{names.JUDGED_ANNOTATION}" in object.metadata.annotations' in expression
    assert expression.count(f'== "{names.POD_CLAIM_NAME}"') == 1
    assert expression.count(f'.startsWith("{names.POD_CLAIM_NAME}-")') == 1
    policy = named("ValidatingAdmissionPolicy", "aliquot-own-templates")["spec"]
    assert policy["matchConditions"][0]["expression"] == f'request.userInfo.username != "{ACCOUNT}"'
    checks = " ".join(each["expression"] for each in policy["validations"])
    assert f'"{names.JUDGED_ANNOTATION}" in object.spec.metadata.annotations' in checks
    assert f'object.metadata.name.startsWith("{NAME_PREFIX}")' in checks


def test_the_controller_manager_of_another_distribution_can_be_named() -> None:
    given = render({"webhook": {"settings": {"claimMakers": ["odd", "other"]}}})
    assert '!(request.userInfo.username in ["odd", "other"]' in _conditions_of_claims(given)


def test_where_pods_may_pass_us_by_every_claim_is_judged() -> None:
    """Then one of our templates may be named by a pod that nobody has judged."""
    given = render({"webhook": {"failurePolicy": "Ignore"}})
    assert names.JUDGED_ANNOTATION not in _conditions_of_claims(given)


def _conditions_of_claims(given: list[Any]) -> str:
    (found,) = [each for each in given if each["kind"] == "ValidatingWebhookConfiguration"]
    claims = next(each for each in found["webhooks"] if each["name"].startswith("claims."))
    return " ".join(each["expression"] for each in claims["matchConditions"])


def test_pods_that_name_our_templates_are_judged_or_refused(webhook: Any) -> None:
    ours = f'c.resourceClaimTemplateName.startsWith("{NAME_PREFIX}")'
    assert ours in webhook["matchConditions"][0]["expression"]
    policy = named("ValidatingAdmissionPolicy", "aliquot-own-claims")["spec"]
    names_in_pods, elsewhere = [each["expression"] for each in policy["validations"]]
    assert f'c.name == "{names.POD_CLAIM_NAME}"' in names_in_pods
    assert f'c.name.startsWith("{names.POD_CLAIM_NAME}-")' in names_in_pods
    assert ours in elsewhere
    # Exactly the selectors of pods.aliquot.dev.
    assert f'namespaceLabels[?"{names.INJECT_LABEL}"].orValue("") == "{names.INJECT_ENABLED}"' in elsewhere
    for where in ("namespaceLabels", "labels"):
        assert f'{where}[?"{HAMI_OPT_OUT[0]}"].orValue("") != "{HAMI_OPT_OUT[1]}"' in elsewhere
    assert f'labels[?"{names.INJECT_LABEL}"].orValue("") != "{names.INJECT_DISABLED}"' in elsewhere


def test_the_implicit_resources_of_our_classes_are_closed() -> None:
    policy = named("ValidatingAdmissionPolicy", "aliquot-no-implicit-resource")
    variables = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    for device_class in Settings().device_classes:
        assert f'"{device_class}"' in variables["names"]
    assert variables["names"].endswith('.map(name, "deviceclass.resource.kubernetes.io/" + name)')
    binding = named("ValidatingAdmissionPolicyBinding", policy["metadata"]["name"])
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_the_webhook_guards_the_folders_that_the_agents_are_given() -> None:
    given = render({"agent": {"stateDir": "/data/aliquot", "kubeletDir": "/data/kubelet"}})
    (deployment,) = [
        each for each in given if each["kind"] == "Deployment" and each["metadata"]["name"] == NAME
    ]
    (main,) = deployment["spec"]["template"]["spec"]["containers"]
    (guarded,) = [each["value"] for each in main["env"] if each["name"] == "ALIQUOT_GUARDED_DIRS"]
    plugins = ["/data/kubelet/plugins/gpu.aliquot.dev", "/data/kubelet/plugins_registry"]
    assert guarded.split(",") == ["/data/aliquot", *plugins]


def test_who_may_not_be_in_a_pod_with_a_share_may_not_debug_it() -> None:
    policy = named("ValidatingAdmissionPolicy", "aliquot-no-privileged-debugging")
    (rule,) = policy["spec"]["validations"]
    assert all(f'"{capability}"' in rule["expression"] for capability in CAPABILITIES)


def test_it_is_called_where_it_serves(webhook: Any, validating: Any) -> None:
    app = create_app(mutator=None, validator=None, metrics=None, not_ready=list)  # type: ignore[arg-type] # routes only
    paths = {rule.rule for rule in app.url_map.iter_rules()}
    for each, path in [(webhook, "/mutate"), *((each, "/validate") for each in validating)]:
        service = each["clientConfig"]["service"]
        assert f"{service['name']}.{service['namespace']}.svc" == CommonSettings().hosts[0]
        assert service["path"] == path
        assert path in paths
    (container,) = named("Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    assert {container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} <= paths
    assert container["ports"][0]["containerPort"] == Settings().port
    assert container["command"] == ["aliquot-webhook"]
    (controller,) = named("Deployment", CONTROLLER)["spec"]["template"]["spec"]["containers"]
    assert controller["ports"][0]["containerPort"] == ControllerSettings().port
    assert controller["command"] == ["aliquot-controller"]


def test_permissions_are_for_our_objects() -> None:
    """Each of the two has what it needs and no more; nobody may write pods, nodes or other people's
    configurations."""
    allowed = {
        (name, resource): set(rule["verbs"])
        for name in (NAME, CONTROLLER)
        for rule in named("ClusterRole", name)["rules"]
        for resource in rule["resources"]
    }
    assert allowed[(NAME, "resourceclaimtemplates")] == {"get", "list", "watch", "create", "patch"}
    assert allowed[(CONTROLLER, "resourceclaimtemplates")] == {"list", "delete"}
    assert allowed[(NAME, "resourceclaims")] == {"get", "list"}
    assert allowed[(CONTROLLER, "pods")] == {"list"}
    assert (NAME, "pods") not in allowed
    for name in (NAME, CONTROLLER):
        for rule in named("ClusterRole", name)["rules"]:
            if rule["apiGroups"] == ["admissionregistration.k8s.io"]:
                assert rule["resourceNames"] == [NAME]
            assert "secrets" not in rule["resources"]
            assert "*" not in [*rule["resources"], *rule["verbs"], *rule["apiGroups"]]
    assert [rule.get("resourceNames") for rule in named("Role", "aliquot-certificates")["rules"]] == [
        None,
        [SECRET],
    ]
    assert [rule.get("resourceNames") for rule in named("Role", CONTROLLER)["rules"]] == [None, [CONTROLLER]]


def test_the_kinds_of_budgets_are_those_that_the_code_uses() -> None:
    kinds = {each["spec"]["names"]["plural"]: each["spec"] for each in manifests("CustomResourceDefinition")}
    assert set(kinds) == {"aliquotbudgets", "aliquotledgers"}
    for kind in kinds.values():
        assert kind["group"] == names.CONFIG_GROUP
        assert [each["name"] for each in kind["versions"]] == [names.CONFIG_VERSION]
    schema = kinds["aliquotbudgets"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert set(schema["spec"]["properties"]) == set(Thing)
    entry = kinds["aliquotledgers"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["entries"]
    assert isinstance(ledger.encode({}), str)
    assert entry["type"] == "string"


def test_the_class_leaves_other_drivers_and_oversubscribed_gpus_out() -> None:
    device_class = named("DeviceClass", names.DEVICE_CLASS)
    assert device_class["metadata"]["name"] == names.DEVICE_CLASS
    assert "extendedResourceName" not in device_class["spec"]
    (selector,) = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        f'device.driver == "{names.DRIVER}" && device.attributes["{names.DRIVER}"].oversubscribed == false'
    )
