# SPDX-License-Identifier: Apache-2.0
"""What is written by hand, judged without a cluster: any JSON gets an answer, and each rule its words."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot_api import names
from aliquot_webhook.policy import Policy
from aliquot_webhook.probe import ServerState
from aliquot_webhook.templates import ROOT
from aliquot_webhook.validate import Validator
from tests.unit.webhook.fake_api import FakeApi
from tests.unit.webhook.kit import L4, inventory, review
from tests.unit.webhook.offices import CLASSES, office
from tests.unit.webhook.test_amounts import ask, exactly, spec

CLAIMS = f"{ROOT}/namespaces/team-a/resourceclaims"
LIMIT = "aliquot.dev/gpu-memory-limit"


class Bed:
    """A validator on a fake server."""

    def __init__(self, *, policy: Policy | None = None, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()
        self.server = ServerState(problem=None)
        known = inventory([L4, L4])
        self.validator = Validator(
            api=self.api,
            policy=policy or Policy(),
            inventory=lambda: known,
            server=lambda: self.server,
            budget=office(self.api, known=known),
            classes=CLASSES,
        )

    def judge(self, resource: str, given: object, *, operation: str = "CREATE", old: object = None) -> str:
        """Empty if it goes through, else why not."""
        asked = review(given, resource={"resource": resource}, operation=operation, oldObject=old)
        response = self.validator.answer(asked).review["response"]
        return "" if response["allowed"] else response["status"]["message"]

    def claim(self, given: object) -> str:
        return self.judge("resourceclaims", {"metadata": {"uid": "1"}, "spec": given})

    def put_claim(self, name: str, *requests: dict[str, Any]) -> None:
        self.api.put(
            f"{CLAIMS}/{name}", {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec(*requests)}
        )


def pod(*claims: str, annotation: str | None = None, **container: Any) -> dict[str, Any]:
    """A pod whose one container has these claims by their own names."""
    main = {"name": "main", "resources": {"claims": [{"name": each} for each in claims]}, **container}
    return {
        "metadata": {"annotations": {} if annotation is None else {LIMIT: annotation}},
        "spec": {
            "containers": [main],
            "resourceClaims": [{"name": each, "resourceClaimName": each} for each in claims],
        },
    }


WORDS = (
    "devices requests exactly firstAvailable deviceClassName capacity memory config opaque driver parameters"
    " name count constraints spec metadata annotations containers resources claims resourceClaims status"
    f" resourceClaimName {LIMIT}"
).split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(WORDS),
            inner,
            max_size=5,
        )
        | st.sampled_from(["gpu.aliquot.dev", "8Gi", "c"])
    ),
    max_leaves=25,
)


@settings(max_examples=150, deadline=None)
@given(JSON, JSON, st.sampled_from(["resourceclaims", "resourceclaimtemplates", "pods"]))
def test_any_json_gets_an_answer(new: object, old: object, resource: str) -> None:
    bed = Bed()
    bed.put_claim("c", exactly(memory="1Gi"))
    for operation in ("CREATE", "UPDATE"):
        bed.judge(resource, new, operation=operation, old=old)


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        pytest.param([exactly(memory="1Gi")], "", id="a share"),
        pytest.param([exactly()], "", id="a whole card"),
        pytest.param([{"firstAvailable": [ask(memory="80Gi"), ask(memory="1Gi")]}], "", id="one fits"),
        pytest.param([exactly(memory="23035Mi")], "the largest, NVIDIA L4, has 23034Mi", id="too large"),
        pytest.param([exactly(memory="0")], "want at least 1Mi", id="nothing"),
        pytest.param([exactly(memory="16")], "did you mean 16Mi?", id="bytes"),
        pytest.param([exactly(shares="0")], "want at least 1", id="no share"),
        pytest.param([exactly(cores="-1")], "percentage from 0 to 100", id="less than nothing"),
    ],
)
def test_requests(requests: list[dict[str, Any]], says: str) -> None:
    message = Bed().claim(spec(*requests))
    assert says in message
    assert bool(says) == bool(message)


def test_several_cards_of_one_request_before_1_36() -> None:
    bed = Bed()
    given = spec(exactly(memory="1Gi", count=2))
    assert bed.claim(given) == ""
    bed.server = ServerState(problem=None, count_is_distinct=False)
    assert "write as many requests instead" in bed.claim(given)
    assert bed.claim(spec(exactly(count=2))) == ""  # whole cards do not fit twice


def test_contradictions_of_configurations_name_the_request() -> None:
    given = copy.deepcopy(spec(exactly(memory="1Gi"), exactly(memory="1Gi")))
    header = {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "ShareConfig"}
    given["devices"]["config"] = [
        {"opaque": {"driver": "gpu.aliquot.dev", "parameters": {**header, "sharing": "shim"}}},
        {
            "requests": ["r1"],
            "opaque": {"driver": "gpu.aliquot.dev", "parameters": {**header, "sharing": "exclusive"}},
        },
    ]
    assert "config (request r1)" in Bed().claim(given)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        pytest.param({"sharing": "mps"}, "no GPU of this cluster is shared that way", id="mps"),
        pytest.param({"sharing": "timeslice", "timeSlice": "long"}, "offer: shim", id="a length"),
        pytest.param({"sharing": "timeslice", "timeSlice": "huge"}, "default, long, medium", id="no length"),
        pytest.param(
            {"sharing": "shim", "timeSlice": "long"}, "goes with sharing: timeslice", id="contradiction"
        ),
        pytest.param({"sharing": "shim"}, "", id="shim"),
    ],
)
def test_a_way_of_sharing_that_no_gpu_has(config: dict[str, str], says: str) -> None:
    given = copy.deepcopy(spec(exactly(memory="1Gi")))
    parameters = {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "ShareConfig", **config}
    given["devices"]["config"] = [{"opaque": {"driver": "gpu.aliquot.dev", "parameters": parameters}}]
    message = Bed().claim(given)
    assert says in message
    assert bool(says) == bool(message)


def test_a_server_that_is_not_fit_gets_no_claims_of_ours() -> None:
    bed = Bed()
    bed.server = ServerState(problem="enable the gate")
    assert bed.claim(spec(exactly())) == "enable the gate"


def test_privileged_pods_with_hand_written_claims() -> None:
    privileged: dict[str, Any] = {"securityContext": {"privileged": True}}
    bed = Bed()
    bed.put_claim("share", exactly(memory="1Gi"))
    bed.put_claim("whole", exactly())
    bed.put_claim("nic", exactly(device_class="nic.example"))
    assert "privileged" in bed.judge("pods", pod("share", **privileged))
    assert "privileged" in bed.judge("pods", pod("whole", **privileged))
    assert bed.judge("pods", pod("nic", **privileged)) == ""
    assert bed.judge("pods", pod("not-there", **privileged)) == ""
    assert bed.judge("pods", pod("share")) == ""
    generous = Bed(policy=Policy(allow_privileged_whole_gpu=True), api=bed.api)
    assert generous.judge("pods", pod("whole", **privileged)) == ""
    assert "privileged" in generous.judge("pods", pod("whole", "share", **privileged))


def test_what_keeps_us_from_looking_is_no_reason_to_refuse_a_pod() -> None:
    """It may be another driver's."""
    bed = Bed()
    bed.put_claim("nic", exactly(device_class="nic.example"))
    bed.server = ServerState(problem="DeviceClass gpu.aliquot.dev is missing")
    assert bed.judge("pods", pod("nic")) == ""
    bed.api.forbidden.add(("GET", "resourceclaims"))
    assert bed.judge("pods", pod("nic")) == ""


def test_a_resize_of_claims_that_cannot_be_read_is_refused() -> None:
    bed = Bed()
    bed.api.forbidden.add(("GET", "resourceclaims"))
    message = bed.judge("pods", pod("share", annotation="2Gi"), operation="UPDATE", old=pod("share"))
    assert "cannot read resourceclaims team-a/share" in message


def test_a_pod_of_very_many_claims_costs_few_calls() -> None:
    bed = Bed()
    many = pod(*(f"claim-{number}" for number in range(5000)))
    assert bed.judge("pods", many) == ""
    assert len(bed.api.calls) <= 40
    annotated = copy.deepcopy(many)
    annotated["metadata"]["annotations"] = {LIMIT: "2Gi"}
    assert "more than 32 claims" in bed.judge("pods", annotated, operation="UPDATE", old=many)
    assert len(bed.api.calls) <= 80


def test_one_claim_under_many_names_is_read_once() -> None:
    bed = Bed()
    bed.put_claim("share", exactly(memory="1Gi"))
    given = pod("share")
    entries = [{"name": f"c{number}", "resourceClaimName": "share"} for number in range(100)]
    given["spec"]["resourceClaims"] += entries
    assert bed.judge("pods", given) == ""
    assert len(bed.api.calls) == 1


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        ("1Gi", ""),
        ("main=512Mi", ""),
        ("2Gi", "asks for 1024Mi"),
        ("main=1025Mi", "asks for 1024Mi"),
        ("main=x", "want a Kubernetes quantity"),
    ],
)
def test_no_pod_is_born_with_more_than_its_claims_ask_for(annotation: str, says: str) -> None:
    bed = Bed()
    bed.put_claim("share", exactly(memory="1Gi"))
    message = bed.judge("pods", pod("share", annotation=annotation))
    assert bool(says) == bool(message)
    assert says in message


def test_a_first_limit_needs_claims_that_can_be_read() -> None:
    bed = Bed()
    assert "create the claim or its template first" in bed.judge("pods", pod("later", annotation="2Gi"))
    bed.put_claim("nic", exactly(device_class="nic.example"))
    assert bed.judge("pods", pod("nic", annotation="2Gi")) == ""
    bed.put_claim("whole", exactly())
    assert bed.judge("pods", pod("whole", annotation="2Gi")) == ""


def test_one_card_twice() -> None:
    bed = Bed()
    bed.put_claim("two", exactly(memory="1Gi"), exactly(memory="1Gi"))
    bed.put_claim("one-is-whole", exactly(memory="1Gi"), exactly())
    assert "may get one GPU" in bed.judge("pods", pod("two"))
    assert bed.judge("pods", pod("one-is-whole")) == ""
    apart = spec(exactly(memory="1Gi"), exactly(memory="1Gi"), exactly(memory="1Gi"))
    for requests, says in (([], ""), (["r0", "r1", "r2"], ""), (["r0", "r1"], "may get one GPU")):
        constraint = {"distinctAttribute": "gpu.aliquot.dev/uuid", "requests": requests}
        apart["devices"]["constraints"] = [constraint]
        bed.api.put(f"{CLAIMS}/apart", {"metadata": {"name": "apart"}, "spec": apart})
        message = bed.judge("pods", pod("apart"))
        assert says in message
        assert bool(says) == bool(message)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (None, "2Gi", ""),
        ("2Gi", "2Gi", ""),
        ("2Gi", None, ""),
        (None, "main=2Gi", ""),
        (None, "other=2Gi", "want one of the pod's GPU containers: main"),
        (None, "2", "did you mean 2Mi?"),
        (None, "30Gi", "no GPU of this cluster is that large"),
    ],
)
def test_resizes(old: str | None, new: str | None, says: str) -> None:
    bed = Bed()
    bed.put_claim("share", exactly(memory="1Gi"))
    message = bed.judge(
        "pods", pod("share", annotation=new), operation="UPDATE", old=pod("share", annotation=old)
    )
    assert says in message
    assert bool(says) == bool(message)


def test_a_pod_without_claims_of_ours_may_have_any_annotation() -> None:
    bed = Bed()
    bed.put_claim("nic", exactly(device_class="nic.example"))
    assert bed.judge("pods", pod("nic", annotation="x"), operation="UPDATE", old=pod("nic")) == ""


def test_a_whole_card_is_not_resized() -> None:
    bed = Bed()
    bed.put_claim("whole", exactly())
    assert "has a whole GPU" in bed.judge(
        "pods", pod("whole", annotation="1Gi"), operation="UPDATE", old=pod("whole")
    )


@pytest.mark.parametrize("key", [names.ANNOTATION_CORES, names.ANNOTATION_COMPUTE_POLICY])
def test_how_a_running_pod_shares_time_is_not_changed(key: str) -> None:
    bed = Bed()
    bed.put_claim("share", exactly(memory="1Gi"))
    bed.put_claim("nic", exactly(device_class="nic.example"))
    for claim, says in (("share", "make a new pod to change it"), ("nic", "")):
        before, after = pod(claim), pod(claim)
        after["metadata"]["annotations"] = {key: "strict"}
        for old, new in ((before, after), (after, before)):
            message = bed.judge("pods", new, operation="UPDATE", old=old)
            assert says in message
            assert bool(says) == bool(message)
        assert bed.judge("pods", after, operation="UPDATE", old=after) == ""
