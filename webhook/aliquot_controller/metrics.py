# SPDX-License-Identifier: Apache-2.0
"""Counters of the controller, in a registry of their own."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from aliquot_api.names import METRICS_PREFIX


class Metrics:
    """What the controller counts. Namespaces are labels only where they have a budget."""

    def __init__(self) -> None:
        prefix = f"{METRICS_PREFIX}controller"
        self._registry = CollectorRegistry()
        self._leads = Gauge(f"{prefix}_leads", "1 while this controller leads.", registry=self._registry)
        self._deleted = Counter(
            f"{prefix}_templates_deleted", "Unused ResourceClaimTemplates deleted.", registry=self._registry
        )
        self._stale = Gauge(
            f"{prefix}_stale_claims",
            "Claims that hold GPUs for pods that are gone.",
            registry=self._registry,
        )
        self._released = Counter(
            f"{prefix}_stale_claims_released", "Stale claims released.", registry=self._registry
        )
        self._budget = Gauge(
            f"{METRICS_PREFIX}budget",
            "Budgets: what is allowed (limit), promised (used) and allocated (consumed); memory in bytes.",
            ["namespace", "resource", "kind"],
            registry=self._registry,
        )

    def leading(self, *, leads: bool) -> None:
        """Whether this controller leads now."""
        self._leads.set(leads)

    def template_deleted(self) -> None:
        """An unused template is gone."""
        self._deleted.inc()

    def stale_claims(self, number: int) -> None:
        """So many stale claims are there at the moment."""
        self._stale.set(number)

    def stale_claim_released(self) -> None:
        """One of them was released."""
        self._released.inc()

    def budgets(self, values: Mapping[tuple[str, str, str], int]) -> None:
        """All budgets, by namespace, resource and kind; others end."""
        self._budget.clear()
        for labels, value in values.items():
            self._budget.labels(*labels).set(value)

    def exposition(self) -> bytes:
        """All series, in Prometheus' text format."""
        return generate_latest(self._registry)
