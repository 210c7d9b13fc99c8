# SPDX-License-Identifier: Apache-2.0
"""Budgets on a fake server."""

from collections.abc import Callable

from aliquot_webhook.budget import BudgetOffice
from aliquot_webhook.budgets import Budgets
from aliquot_webhook.charges import Charges
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import Policy
from aliquot_webhook.settings import Settings
from tests.unit.webhook.fake_api import FakeApi
from tests.unit.webhook.kit import H100, inventory

CLASSES = Settings().device_classes
CONTROLLER_MANAGER = Settings().claim_makers[0]
RESERVATION_S = 60.0


def office(
    api: FakeApi,
    *,
    known: Inventory | None = None,
    now_s: Callable[[], float] = lambda: 0.0,
    budgets: Budgets | None = None,
    patience_s: float = 0.0,
) -> BudgetOffice:
    """Budgets that nobody has written yet, on GPUs of the largest kind."""
    known = inventory([H100] * 8) if known is None else known

    def whole_bytes() -> int | None:
        return known.largest.memory_bytes if known.largest else None

    return BudgetOffice(
        budgets=budgets or Budgets(policy=Policy()),
        charges=Charges(
            api=api,
            classes=CLASSES,
            whole_bytes=whole_bytes,
            reservation_s=RESERVATION_S,
            patience_s=patience_s,
            now_s=now_s,
        ),
        inventory=lambda: known,
        classes=CLASSES,
        claim_makers=Settings().claim_makers,
    )
