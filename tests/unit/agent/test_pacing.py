# SPDX-License-Identifier: Apache-2.0
"""Which policy and priority a prepared share has."""

from pathlib import Path

import pytest

from aliquot_agent.nodepolicy import NamespacePolicy, NodePolicy
from aliquot_agent.pacing import PacedShare, paced_share
from aliquot_api.config import ComputePolicy, Priority
from tests.unit.agent.shares import make_prepared, make_share

OFF, FAIR, STRICT = ComputePolicy.OFF, ComputePolicy.FAIR, ComputePolicy.STRICT


@pytest.mark.parametrize(
    ("by_node", "by_namespace", "by_class", "by_claim", "wanted"),
    [
        pytest.param(FAIR, None, "", "", FAIR, id="the node's"),
        pytest.param(FAIR, STRICT, "", "", STRICT, id="the namespace's before it"),
        pytest.param(STRICT, FAIR, "off", "", OFF, id="the class's before both"),
        pytest.param(FAIR, None, "", "strict", STRICT, id="a claim is stricter"),
        pytest.param(FAIR, None, "", "off", FAIR, id="a claim is not milder"),
        pytest.param(FAIR, None, "strict", "fair", STRICT, id="a claim is not milder than its class"),
        pytest.param(OFF, None, "", "fair", FAIR, id="a claim where nothing is held"),
    ],
)
def test_whose_word_counts(
    by_node: ComputePolicy,
    by_namespace: ComputePolicy | None,
    by_class: str,
    by_claim: str,
    wanted: ComputePolicy,
) -> None:
    share = make_share(class_compute_policy=by_class, claim_compute_policy=by_claim, cores_percent=30)
    node = NodePolicy(compute=by_node, namespaces={"team-a": NamespacePolicy(compute=by_namespace)})
    found = paced_share(make_prepared(share), share, path=Path("/x"), node=node)
    assert found == PacedShare(("uid-a", "share-a"), Path("/x"), "GPU-a", 30_000, wanted, Priority.LOW)


def test_what_the_driver_divides_is_not_paced() -> None:
    share = make_share(sharing="mps", class_compute_policy="strict", priority="high")
    found = paced_share(make_prepared(share), share, path=Path("/x"), node=NodePolicy())
    assert (found.policy, found.priority) == (OFF, Priority.HIGH)
