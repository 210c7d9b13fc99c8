# SPDX-License-Identifier: Apache-2.0
"""The semantics table holds, row by row, and the page made from it is current."""

import json
from typing import Any

import pytest

from aliquot_webhook.rewrite import Patch, rewrite
from tests.unit.webhook.kit import apply
from tests.unit.webhook.semantics import PAGE, Case, cases, outcome, page

CASES = list(cases())
CONVERTED = [case for case in CASES if "claim" in case.row]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_row_says_what_happens(case: Case) -> None:
    assert outcome(case) == case.expected


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: case.name)
def test_a_converted_pod_is_complete_and_a_second_pass_changes_nothing(case: Case) -> None:
    decision = rewrite(case.pod, case.policy, case.known)
    assert isinstance(decision, Patch)
    result: Any = apply(case.pod, decision.operations)
    again = rewrite(result, case.policy, case.known)

    assert isinstance(again, Patch), again
    assert (again.operations, again.templates) == ((), decision.templates)
    claims = {claim["name"] for claim in result["spec"]["resourceClaims"]}
    for section in ("containers", "initContainers"):
        for container in result["spec"].get(section, []):
            assert "void" in json.dumps(container["env"]) or "none" in json.dumps(container["env"])
            resources = container.get("resources", {})
            left = {**resources.get("limits", {}), **resources.get("requests", {})}
            assert not set(case.policy.resources.all()).intersection(left)
            assert {entry["name"] for entry in resources.get("claims", [])} <= claims
    assert all(len(name) <= 63 for name in claims)


def test_names_of_rows_are_unique() -> None:
    names = [case.name for case in CASES]
    assert sorted(set(names)) == sorted(names)


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make docs"
