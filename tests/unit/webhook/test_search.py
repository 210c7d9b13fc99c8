# SPDX-License-Identifier: Apache-2.0
"""The bound on the scheduler's search."""

import pytest

from aliquot_webhook.policy import Policy
from aliquot_webhook.rewrite import Patch, Refusal, rewrite
from tests.unit.webhook.kit import H100, container, inventory, pod

EIGHT = inventory([H100] * 8)


def mixed(number: int) -> list[dict[str, object]]:
    """Containers of which none needs at most what another needs."""
    return [
        container(f"c{index}", gpumem=str(1000 - index), gpucores=str(index + 1)) for index in range(number)
    ]


def alike(number: int, **limits: str) -> list[dict[str, object]]:
    return [container(f"c{index}", **limits) for index in range(number)]


@pytest.mark.parametrize(
    ("containers", "old", "admitted"),
    [
        pytest.param(mixed(5), False, True, id="five mixed ones: 8^5"),
        pytest.param(mixed(6), False, False, id="six mixed ones: 8^6"),
        pytest.param(alike(8, gpumem="100"), False, True, id="eight equal ones: 8!"),
        pytest.param(alike(8, vgpu="1"), False, True, id="eight whole cards"),
        pytest.param(alike(4, vgpu="2"), False, True, id="four pairs of whole cards"),
        pytest.param(alike(2, vgpu="4"), False, True, id="two times four whole cards"),
        pytest.param(alike(4, vgpu="2", gpumem="100"), False, False, id="four pairs of shares: 28^3 x 8"),
        pytest.param(alike(3, vgpu="2", gpumem="100"), False, True, id="three pairs of shares: 28^2 x 8"),
        pytest.param(alike(1, vgpu="8"), False, True, id="all cards"),
        pytest.param(alike(1, vgpu="8"), True, True, id="1.35: all cards, eight requests that differ"),
        pytest.param(alike(2, vgpu="4"), True, False, id="1.35: two times four"),
        pytest.param(alike(2, vgpu="2"), True, True, id="1.35: two times two"),
    ],
)
def test_pods_that_would_hold_up_the_scheduler_are_refused(
    containers: list[dict[str, object]], *, old: bool, admitted: bool
) -> None:
    decision = rewrite(pod(*containers), Policy(count_is_distinct=not old), EIGHT)

    if admitted:
        assert isinstance(decision, Patch), decision
    else:
        assert isinstance(decision, Refusal)
        assert "the scheduler would try too long" in decision.message
