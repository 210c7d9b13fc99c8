# SPDX-License-Identifier: Apache-2.0
"""Values, their schema and the settings of the programs say the same; bad values are refused by name."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from aliquot_agent import nodeconfig
from aliquot_agent import settings as agent
from aliquot_api import names
from aliquot_controller.settings import ControllerSettings
from aliquot_webhook import settings as webhook
from tests.chart.scraping import PORTS
from tests.cluster import TestbedError
from tests.testkit.chart import CHART, NAMESPACE, Values, lint, render
from tests.testkit.chart_readme import page, table
from tests.unit.test_links import ROOT

ODD: Final[Values] = {
    "requests": {"defaultCores": 7, "memoryFactor": 1024, "deviceClasses": ["gpu.aliquot.dev", "x.example"]},
    "webhook": {
        "settings": {"threads": 3, "apiTimeoutS": 2.5, "allowPrivilegedWholeGpu": True, "extraHosts": ["a"]}
    },
    "controller": {"settings": {"staleClaims": "report", "leaseS": 7}},
    "agent": {
        "kubeletDir": "/data/kubelet",
        "settings": {"reserve": "1Gi", "shares": 4, "hamiMetrics": True, "settleS": 0.5},
    },
}  # fmt: skip
FIXED: Final = {
    "webhook": {
        *("kubeconfig", "namespace", "certificate_folder", "host", "port"),
        *("client_authority", "client_names", "guarded_dirs"),
    },
    "controller": {"kubeconfig", "namespace", "host", "port", "identity", "keep_ca_bundle"},
}
"""What the chart itself decides."""
HAMIS_SETTINGS: Final = (
    *("resourceName", "resourceMem", "resourceMemPercentage", "resourceCores", "resourcePriority"),
    *("deviceSplitCount", "deviceMemoryScaling", "deviceCoreScaling", "preConfiguredDeviceMemory"),
    *("nodeConfiguration.config", "operatingmode", "devicememoryscaling", "devicecorescaling"),
    *("devicesplitcount", "preconfigureddevicememory", "enablenumatopology", "migstrategy", "filterdevices"),
    *("enablegetpreferredallocation", "libcudaloglevel", "migStrategy", "disablecorelimit"),
    *("deviceListStrategy", "runtimeClassName", "createRuntimeClass", "nvidiaNodeSelector", "gpuCorePolicy"),
    *("libCudaLogLevel", "defaultMemory", "defaultCores", "defaultGPUNum", "memoryFactor"),
    *("whitelistNamespaces", "namespaceSelector", "objectSelector", "failurePolicy", "reinvocationPolicy"),
    *("overwriteEnv", "forceOverwriteDefaultScheduler", "certManager.enabled", "patch.enabled"),
    *("gpuHookPath", "legacyMetrics", "prometheus.enabled"),
)
"""Values of HAMi's chart, keys of its node configuration and of its device-config."""


@cache
def values() -> Any:
    return yaml.safe_load((CHART / "values.yaml").read_text())


@cache
def schema() -> Any:
    return json.loads((CHART / "values.schema.json").read_text())


def environment(manifests: Sequence[Any], name: str) -> dict[str, str]:
    (found,) = [
        each
        for each in manifests
        if each["kind"] in ("Deployment", "DaemonSet") and each["metadata"]["name"] == f"aliquot-{name}"
    ]
    container = found["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(node, dict) and node:
        for key, below in node.items():
            yield from leaves(below, (*path, key))
    else:
        yield path


@pytest.mark.parametrize(
    ("part", "kind"),
    [pytest.param("webhook", webhook.Settings, id="webhook"),
     pytest.param("controller", ControllerSettings, id="controller")],
)  # fmt: skip
def test_every_setting_has_a_value_with_the_programs_own_default(part: str, kind: type) -> None:
    given = {**values()["requests"], **values()["webhook"]["settings"], **values()[part]["settings"]}
    known = {each.name: each.default for each in fields(kind) if each.name not in FIXED[part]}
    stated = {snake(name): value for name, value in given.items() if snake(name) in known}
    assert set(stated) == set(known)
    assert {
        name: tuple(value) if isinstance(value, list) else value for name, value in stated.items()
    } == known
    assert {snake(name) for name in values()[part]["settings"]} <= set(known)


def test_every_setting_of_the_agent_has_a_value_with_its_own_default() -> None:
    given = environment(render(), "agent") | {"NODE_NAME": "n"}
    assert agent.load([], given | {"ALIQUOT_HOST_ROOT": "/"}) == agent.load([], {"NODE_NAME": "n"})
    flags = {f"ALIQUOT_{snake(name).upper()}" for name in values()["agent"]["settings"]}
    text = agent._parser({}).format_help()
    options = {
        f"ALIQUOT_{flag.replace('-', '_').upper()}" for flag in re.findall(r"^  --([a-z-]+)", text, re.M)
    }
    by_the_chart = {
        f"ALIQUOT_{name}"
        for name in (
            *(
                "NODE_NAME",
                "NAMESPACE",
                "KUBECONFIG",
                "PLUGIN_DIR",
                "REGISTRY_DIR",
                "CDI_DIR",
                "BASE_CDI_DIRS",
            ),
            *(
                "HOST_ROOT",
                "DEVICE_PLUGINS_DIR",
                "STATE_DIR",
                "LIBRARY",
                "METRICS_PORT",
                "BOOT_ID_FILE",
                "POD_UID",
                "RUN_DIR",
            ),
        )
    }
    assert options - by_the_chart == flags


def test_settings_arrive_as_the_programs_read_them() -> None:
    manifests = render(ODD)
    read = webhook.read(webhook.Settings, prog="w", argv=[], environ=environment(manifests, "webhook"))
    assert (read.threads, read.api_timeout_s, read.extra_hosts) == (3, 2.5, ("a",))
    assert (read.allow_privileged_whole_gpu, read.default_cores, read.memory_factor) == (True, 7, 1024)
    assert read.device_classes == ("gpu.aliquot.dev", "x.example")
    led = webhook.read(ControllerSettings, prog="c", argv=[], environ=environment(manifests, "controller"))
    assert (led.stale_claims, led.lease_s, led.memory_factor) == ("report", 7, 1024)
    assert led.hosts == read.hosts  # both make the certificate
    told = agent.load([], environment(manifests, "agent") | {"NODE_NAME": "n"})
    assert (told.reserve_bytes, told.shares_per_gpu, told.settle_s, told.hami_metrics) == (
        1 << 30,
        4,
        0.5,
        True,
    )
    assert told.plugin_dir == Path("/data/kubelet/plugins") / names.DRIVER


def test_large_numbers_do_not_become_powers_of_ten() -> None:
    given = environment(render({"requests": {"defaultMemory": 2_000_000}}), "webhook")
    assert given["ALIQUOT_DEFAULT_MEMORY"] == "2000000"


def test_node_configuration_is_what_the_agent_understands() -> None:
    wanted = {
        "defaults": {"reserve": "256Mi", "gpus": [{"match": [3], "publish": False}]},
        "nodes": [{"labels": {"pool": "a"}, "sharing": "exclusive"}],
        "namespaces": {"research": {"overQuota": "warn"}},
    }
    (found,) = [each for each in render({"nodeConfiguration": wanted}) if each["kind"] == "ConfigMap"]
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == ("aliquot-node-config", NAMESPACE)
    decoded = nodeconfig.decode(found["data"]["config.yaml"])
    assert decoded.defaults.gpu["reserve_bytes"] == 256 << 20
    assert set(decoded.namespaces) == {"research"}


def test_the_values_in_the_page_about_policies_are_understood() -> None:
    [block] = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/policies.md").read_text(), re.M | re.DOTALL)
    (found,) = [each for each in render(yaml.safe_load(block)) if each["kind"] == "ConfigMap"]
    decoded = nodeconfig.decode(found["data"]["config.yaml"])
    assert set(decoded.namespaces) == {"research", "billing"}
    assert decoded.nodes[0][1].gpu["shares"] == 8


def test_the_schema_knows_every_value_and_no_other() -> None:
    def known(node: Any, below: Any, path: str) -> None:
        if "$ref" in node:
            node = schema()["$defs"][node["$ref"].rpartition("/")[2]]
        if node.get("additionalProperties") is False and isinstance(below, dict):
            assert set(below) <= set(node["properties"]), path
            if below:
                assert set(node["properties"]) - {"global", "claims"} == set(below), path
            for key, value in below.items():
                known(node["properties"][key], value, f"{path}.{key}")

    known(schema(), values(), "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"webhook": {"replicaz": 3}}, "replicaz", id="unknown"),
        pytest.param({"webhook": {"settings": {"nonsense": 1}}}, "nonsense", id="unknown setting"),
        pytest.param({"requests": {"defaultCores": 200}}, "/requests/defaultCores", id="too large"),
        pytest.param(
            {"requests": {"resourceCount": "vgpu"}}, "/requests/resourceCount", id="no resource name"
        ),
        pytest.param(
            {"agent": {"settings": {"reserve": "much"}}}, "/agent/settings/reserve", id="no quantity"
        ),
        pytest.param({"webhook": {"failurePolicy": "ignore"}}, "/webhook/failurePolicy", id="no choice"),
        pytest.param({"simulatedGpu": {"gpus": "l4 ; rm"}}, "/simulatedGpu/gpus", id="no list of GPUs"),
        pytest.param({"nodeConfiguration": {"default": {}}}, "/nodeConfiguration", id="no part of it"),
        pytest.param({"webhook": {"timeoutSeconds": 4}}, "webhook.timeoutSeconds: 4", id="too short"),
        pytest.param({"requests": {"resourceCores": "nvidia.com/gpumem"}}, "requests.resource", id="twice"),
        pytest.param({"requests": {"deviceClasses": ["a"]}}, "requests.deviceClasses", id="not our class"),
        pytest.param({"certManager": {"enabled": True}}, "certManager.enabled", id="no cert-manager"),
        pytest.param({"podMonitors": {"enabled": True}}, "podMonitors.enabled", id="no operator"),
        pytest.param(
            {"monitoring": {"rules": {"enabled": True}}},
            "monitoring.rules.enabled",
            id="no operator for rules",
        ),
    ],
)
def test_a_bad_value_is_refused_by_name(given: Values, words: str) -> None:
    with pytest.raises(TestbedError, match=re.escape(words)):
        render(given)


@pytest.mark.parametrize("given", [pytest.param({}, id="defaults"), pytest.param(ODD, id="odd settings")])
def test_helm_lint_finds_nothing(given: Values) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in lint(given)


def test_helm_lint_finds_a_bad_value() -> None:
    with pytest.raises(TestbedError, match=r"1 chart\(s\) failed"):
        lint({"webhook": {"replicaz": 3}})


def test_an_old_kubernetes_is_refused() -> None:
    with pytest.raises(TestbedError, match=r"requires kubeVersion: >=1\.35\.0-0.*v1\.34"):
        render(kubernetes="1.34.3")


def test_simulated_gpus_keep_off_nodes_with_real_ones() -> None:
    for manifest in render({"simulatedGpu": {"enabled": True}}):
        if manifest["kind"] == "DaemonSet":
            spec = manifest["spec"]["template"]["spec"]
            affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (term,) = affinity["nodeSelectorTerms"]
            assert term["matchExpressions"] == [
                {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]}
            ]
            assert "nodeSelector" not in spec


def test_nothing_simulated_is_in_an_installation_for_real_gpus() -> None:
    assert "sim" not in {
        part for name in map(str, render(hooks=True)) for part in re.findall(r"aliquot-(sim)", name)
    }


def test_a_renamed_resource_brings_pods_to_the_webhook() -> None:
    manifests = render({"requests": {"resourceCount": "nvidia.com/gpu"}})
    (mutating,) = [each for each in manifests if each["kind"] == "MutatingWebhookConfiguration"]
    expression = mutating["webhooks"][0]["matchConditions"][0]["expression"]
    assert expression.count('"nvidia.com/gpu"') == 4
    assert "nvidia.com/vgpu" not in expression


def test_pod_monitors_reach_the_pods_and_keep_the_labels_of_shares() -> None:
    manifests = render({"podMonitors": {"enabled": True}}, served=["monitoring.coreos.com/v1"])
    pods = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]: each["spec"]["template"]
        for each in manifests
        if each["kind"] in ("Deployment", "DaemonSet")
    }
    reached = {}
    for monitor in (each for each in manifests if each["kind"] == "PodMonitor"):
        [name] = monitor["spec"]["selector"]["matchLabels"].values()
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        ports = [port for each in pods[name]["spec"]["containers"] for port in each.get("ports", ())]
        [reached[name]] = [port["containerPort"] for port in ports if port["name"] == endpoint["port"]]
        assert endpoint["honorLabels"] is True
        assert {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"} in endpoint[
            "relabelings"
        ]
        assert endpoint.get("scheme", "http") == ("https" if name == "aliquot-webhook" else "http")
    assert reached == PORTS  # where a real Prometheus scrapes an installation in tests/chart


def test_everything_goes_to_the_namespace_of_the_release() -> None:
    assert NAMESPACE not in str(render(namespace="elsewhere", hooks=True))


def test_the_page_for_hamis_users_maps_each_of_its_settings_to_a_value_that_exists() -> None:
    page = (ROOT / "docs/hami.md").read_text().partition("## The settings that you know")[2]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", page.partition("\n## ")[0], re.M)
    theirs = " ".join(known for known, _ in rows)
    assert {name for name in HAMIS_SETTINGS if not re.search(rf"\b{re.escape(name)}\b", theirs)} == set()
    there = {".".join(path[:length]) for path in leaves(values()) for length in range(1, len(path) + 1)}
    for _, ours in rows:
        group = ""
        for word in re.findall(r"`(\.?[a-z]\w*(?:\.\w+)*)[^`]*`", ours):
            path = f"{group}{word}" if word.startswith(".") else word
            if path.split(".")[0] in values():
                group = path.rpartition(".")[0]
                assert path in there or path.startswith("nodeConfiguration."), path


def test_every_value_is_described_and_the_readme_is_current() -> None:
    described = {row.path for row in table()}
    missing = {
        ".".join(path)
        for path in leaves(values())
        if not any(".".join(path[:length]) in described for length in range(1, len(path) + 1))
    }
    assert not missing
    assert (CHART / "README.md").read_text() == page(), "run `make docs`"
