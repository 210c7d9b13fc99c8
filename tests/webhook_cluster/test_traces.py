# SPDX-License-Identifier: Apache-2.0
"""What an admission leaves behind for operators: in the API server's audit log, in our log, in metrics."""

import json
from collections.abc import Callable

from tests.cluster import Cluster
from tests.webhook_cluster.installation import Installation, container, pod, refusal

SECRET = "a-tenants-password"


def test_an_admission_and_a_refusal_are_told_without_what_stands_in_the_pod(
    cluster: Cluster, installation: Installation, namespace: str, templates: Callable[[], list[str]]
) -> None:
    mark, logged = cluster.audit.mark(), len(installation.log("webhook"))
    before = {name: installation.metric("webhook", name) for name in counted("patched", "invalid")}
    for name, gpumem in (("good", 4243), ("bad", 0)):
        given = pod(name, namespace, container(gpumem=gpumem))
        given["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": SECRET}]
        if name == "good":
            cluster.api.create(given)
        else:
            assert "want at least 1 (MiB)" in refusal(cluster, given)

    (template,) = templates()
    created, refused = cluster.audit.requests(since=mark, verb="create", resource="pods", namespace=namespace)
    assert created["annotations"]["pods.aliquot.dev/templates"] == template
    assert refused["annotations"]["pods.aliquot.dev/refused"] == "invalid"

    log = installation.log("webhook")[logged:]
    lines = [json.loads(line) for line in log.splitlines()]
    (told,) = [line for line in lines if line["message"] == "refused" and line["namespace"] == namespace]
    assert (told["reason"], told["operation"], told["resource"]) == ("invalid", "CREATE", "pods")
    assert SECRET not in log
    for name, value in before.items():
        assert installation.metric("webhook", name) >= value + 1, name


def counted(*results: str) -> list[str]:
    """The series that count these answers, the time they took, and templates written."""
    return [
        *(f'aliquot_webhook_reviews_total{{kind="mutate",result="{result}"}}' for result in results),
        'aliquot_webhook_review_seconds_count{kind="mutate"}',
        'aliquot_webhook_template_writes_total{kind="create"}',
    ]
