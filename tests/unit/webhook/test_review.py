# SPDX-License-Identifier: Apache-2.0
"""AdmissionReviews over Flask: what an API server, or somebody who plays one, gets back."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from aliquot_webhook.app import MAX_BODY_BYTES, create_app
from aliquot_webhook.claims import ClaimTemplate
from aliquot_webhook.metrics import Metrics
from aliquot_webhook.policy import Policy
from aliquot_webhook.probe import ServerState
from aliquot_webhook.review import Reviewer
from aliquot_webhook.templates import TemplateUnavailable
from tests.unit.webhook.fake_api import FakeApi
from tests.unit.webhook.kit import L4, apply, container, inventory, pod, review
from tests.unit.webhook.offices import office

JSON = {"Content-Type": "application/json"}


class Bed:
    """The application with a server's state and a template store to play with."""

    def __init__(self, *, may_ask: Callable[[object], bool] = lambda connection: True) -> None:
        self.server = ServerState(problem=None)
        self.missing: list[str] = []
        self.ensured: list[tuple[str, str, bool]] = []
        self.unavailable: str | None = None
        known = inventory([L4, L4])
        reviewer = Reviewer(
            policy=Policy(),
            inventory=lambda: known,
            server=lambda: self.server,
            ensure_template=self.ensure,
            budget=office(FakeApi(), known=known),
        )
        app = create_app(
            mutator=reviewer,
            validator=reviewer,
            metrics=Metrics(),
            not_ready=lambda: self.missing,
            may_ask=may_ask,
        )
        self.client: FlaskClient = app.test_client()

    def ensure(self, namespace: str, template: ClaimTemplate, *, dry_run: bool) -> None:
        if self.unavailable is not None:
            raise TemplateUnavailable(self.unavailable)
        self.ensured.append((namespace, template.name, dry_run))

    def post(self, body: object) -> TestResponse:
        return self.client.post("/mutate", data=json.dumps(body), headers=JSON)

    def answer(self, body: object) -> dict[str, Any]:
        answer = self.post(body)
        assert answer.status_code == 200, answer.text
        whole = json.loads(answer.text)
        assert whole["apiVersion"] == "admission.k8s.io/v1"
        assert whole["kind"] == "AdmissionReview"
        assert whole["response"]["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
        response: dict[str, Any] = whole["response"]
        return response


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_a_gpu_pod_is_patched_once_its_template_is_there(bed: Bed) -> None:
    given = pod(container(vgpu="1", gpumem="8000"))
    response = bed.answer(review(given))

    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    result: Any = apply(given, json.loads(base64.b64decode(response["patch"])))
    assert bed.ensured == [
        ("team-a", result["spec"]["resourceClaims"][0]["resourceClaimTemplateName"], False)
    ]


def test_a_dry_run_is_passed_on(bed: Bed) -> None:
    bed.answer(review(pod(container(vgpu="1")), dryRun=True))

    assert bed.ensured[0][2] is True


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(review(pod(container())), id="a pod without GPUs"),
        pytest.param(review(pod(container(vgpu="x")), operation="UPDATE"), id="an update of another pod"),
        pytest.param(review(pod(container(vgpu="x")), subResource="status"), id="a subresource"),
        pytest.param(review({"spec": 5}, resource={"resource": "services"}), id="something else"),
        pytest.param(review(None), id="no object"),
    ],
)
def test_everything_else_is_let_through_untouched(bed: Bed, body: object) -> None:
    assert bed.answer(body) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}
    assert bed.ensured == []


def test_a_bad_request_is_refused_as_one(bed: Bed) -> None:
    response = bed.answer(review(pod(container(gpumem="0"))))

    assert response["allowed"] is False
    assert response["status"]["code"] == 400
    assert "spec.containers[0].resources.limits[nvidia.com/gpumem]" in response["status"]["message"]
    assert "patch" not in response


def test_a_server_that_is_not_fit_refuses_gpu_pods_and_nothing_else(bed: Bed) -> None:
    bed.server = ServerState(problem="enable the gate")

    refused = bed.answer(review(pod(container(vgpu="1"))))
    assert refused["status"] == {"code": 503, "message": "enable the gate"}
    assert bed.answer(review(pod(container())))["allowed"] is True
    assert bed.ensured == []


def test_without_a_template_there_is_no_pod(bed: Bed) -> None:
    bed.unavailable = "quota"

    assert bed.answer(review(pod(container(vgpu="1"))))["status"] == {"code": 503, "message": "quota"}


def test_the_servers_version_decides_about_several_gpus(bed: Bed) -> None:
    given = review(pod(container(vgpu="2")))
    today = bed.answer(given)["patch"]
    bed.server = ServerState(problem=None, count_is_distinct=False)

    assert bed.answer(given)["patch"] != today


def test_warnings_fit_into_a_header(bed: Bed) -> None:
    main = container("a" * 63, vgpu="1")
    main["resources"]["requests"] = {"nvidia.com/vgpu": "9" * 64}  # type: ignore[index]
    result = bed.answer(review(pod(main, schedulerName="x" * 300)))

    assert result["warnings"]
    assert max(map(len, result["warnings"])) <= 256


GARBAGE: list[tuple[str, Callable[[FlaskClient], TestResponse], int]] = [
    ("no JSON", lambda client: client.post("/mutate", data="{", headers=JSON), 400),
    ("no text", lambda client: client.post("/mutate", data=b"\xff\xfe", headers=JSON), 400),
    ("nothing", lambda client: client.post("/mutate", headers=JSON), 400),
    ("depth", lambda client: client.post("/mutate", data="[" * 200_000, headers=JSON), 400),
    ("no object", lambda client: client.post("/mutate", data="[1]", headers=JSON), 400),
    ("other version", lambda client: client.post("/mutate", json={"apiVersion": "v1beta1"}), 400),
    ("other kind", lambda client: client.post("/mutate", json={"apiVersion": "admission.k8s.io/v1"}), 400),
    (
        "no uid",
        lambda client: client.post(
            "/mutate", json={"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": 1}
        ),
        400,
    ),
    (
        "no namespace",
        lambda client: client.post("/mutate", json=review(pod(container(vgpu="1")), namespace="../secrets")),
        400,
    ),
    ("a form", lambda client: client.post("/mutate", data={"a": "b"}), 415),
    ("a flood", lambda client: client.post("/mutate", data=b" " * (MAX_BODY_BYTES + 1), headers=JSON), 413),
    ("a look", lambda client: client.get("/mutate"), 405),
    ("another path", lambda client: client.post("/other"), 404),
]


@pytest.mark.parametrize(("send", "status"), [pytest.param(*case[1:], id=case[0]) for case in GARBAGE])
def test_garbage_gets_the_right_status_and_few_words(
    bed: Bed, send: Callable[[FlaskClient], TestResponse], status: int
) -> None:
    answer = send(bed.client)

    assert answer.status_code == status
    assert len(answer.text) < 300
    assert "Traceback" not in answer.text


def test_a_fault_of_ours_is_logged_and_not_shown(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    bed.missing = None  # type: ignore[assignment] # a fault
    bed.server = None  # type: ignore[assignment] # another one
    answer = bed.post(review(pod(container(vgpu="1"))))

    assert (answer.status_code, answer.text) == (500, "internal error\n")
    assert "AttributeError" in caplog.text


def test_health_readiness_and_metrics(bed: Bed) -> None:
    assert bed.client.get("/healthz").status_code == 200
    assert bed.client.get("/readyz").status_code == 200
    bed.missing = ["the inventory"]
    assert (bed.client.get("/readyz").status_code, bed.client.get("/readyz").text) == (503, "the inventory\n")

    bed.answer(review(pod(container(vgpu="1"))))
    bed.answer(review(pod(container(vgpu="x"))))
    text = bed.client.get("/metrics").text
    assert 'aliquot_webhook_reviews_total{kind="mutate",result="patched"} 1.0' in text
    assert 'aliquot_webhook_reviews_total{kind="mutate",result="invalid"} 1.0' in text
    assert 'aliquot_webhook_review_seconds_count{kind="mutate"} 2.0' in text
