# SPDX-License-Identifier: Apache-2.0
"""Counters of the webhook, in a registry of their own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from aliquot_api.names import METRICS_PREFIX


class Metrics:
    """What the webhook counts. No label depends on a pod."""

    def __init__(self) -> None:
        prefix = f"{METRICS_PREFIX}webhook"
        self._registry = CollectorRegistry()
        self._reviews = Counter(
            f"{prefix}_reviews", "Admission reviews answered.", ["kind", "result"], registry=self._registry
        )
        self._seconds = Histogram(
            f"{prefix}_review_seconds",
            "Time to answer an admission review.",
            ["kind"],
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
            registry=self._registry,
        )
        self._writes = Counter(
            f"{prefix}_template_writes",
            "Writes of ResourceClaimTemplates.",
            ["kind"],
            registry=self._registry,
        )
        self._expiry = Gauge(
            f"{prefix}_certificate_expiry_timestamp_seconds",
            "When the serving certificate expires.",
            registry=self._registry,
        )
        self._fits = Gauge(
            f"{prefix}_server_fits",
            "0 while the API server does not keep what shares rest on: GPU pods are refused.",
            registry=self._registry,
        )

    def reviewed(self, *, kind: str, result: str, seconds: float) -> None:
        """One review (mutate, validate) was answered: patched, unchanged, or refused for a reason."""
        self._reviews.labels(kind=kind, result=result).inc()
        self._seconds.labels(kind=kind).observe(seconds)

    def template_written(self, kind: str) -> None:
        """A template was created or refreshed."""
        self._writes.labels(kind=kind).inc()

    def certificate_expires(self, timestamp_s: float) -> None:
        """A serving certificate was loaded."""
        self._expiry.set(timestamp_s)

    def server_fits(self, *, fits: bool) -> None:
        """The API server was looked at."""
        self._fits.set(fits)

    def exposition(self) -> bytes:
        """All series, in Prometheus' text format."""
        return generate_latest(self._registry)
