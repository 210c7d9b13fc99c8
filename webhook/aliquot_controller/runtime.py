# SPDX-License-Identifier: Apache-2.0
"""Assembles the controller's loops, starts and stops them."""

import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from aliquot_controller import events
from aliquot_controller.budgets import BudgetKeeper, ClaimSink, series
from aliquot_controller.certificates import CertificateKeeper
from aliquot_controller.leases import Leader
from aliquot_controller.metrics import Metrics
from aliquot_controller.page import Page
from aliquot_controller.settings import NAME, ControllerSettings, StaleClaims
from aliquot_controller.stale import StaleClaimFinder
from aliquot_controller.templates import TemplateCollector
from aliquot_webhook import settings as webhook
from aliquot_webhook.budgets import Budgets
from aliquot_webhook.charges import ChargeUnavailable
from aliquot_webhook.inventory import LiveInventory
from aliquot_webhook.kube import ApiError, Kube
from aliquot_webhook.loops import Loop, stop_all
from aliquot_webhook.reflector import Reflector
from aliquot_webhook.runtime import budget_reflectors, charges, slices_reflector
from aliquot_webhook.templates import ROOT
from aliquot_webhook.tls import CertificateStore

_CERTIFICATES_S: Final = 2.0
_RELEASE_S: Final = 0.5
_FOLLOW_S: Final = 1.0
"""How often one that does not lead asks whether it does."""


class Runtime:
    """All that the controller does, one thread each; only the leader's threads do anything."""

    def __init__(self, *, settings: ControllerSettings) -> None:
        kube = Kube.connect(kubeconfig=settings.kubeconfig or None, timeout_s=settings.api_timeout_s)
        self._metrics = Metrics()
        self._leader = Leader(
            api=kube,
            namespace=settings.namespace,
            name=NAME,
            identity=settings.identity or socket.gethostname(),
            duration_s=settings.lease_s,
        )
        inventory = LiveInventory()
        self._inventory = inventory
        budgets = Budgets(policy=settings.quota_policy)
        self._budgets = BudgetKeeper(
            api=kube,
            budgets=budgets,
            charges=charges(kube, settings, inventory),
            classes=settings.device_classes,
            whole_bytes=self._whole_bytes,
            in_flight_s=settings.in_flight_s,
            show=lambda usages: self._metrics.budgets(series(usages)),
        )
        self._reflectors = (
            slices_reflector(kube, inventory),
            *budget_reflectors(kube, budgets),
            Reflector(
                name="resourceclaims",
                api=kube,
                path=f"{ROOT}/resourceclaims",
                query={},
                sink=ClaimSink(gone=self._budgets.gone),
                keep=lambda claim: None,  # deletions are all that counts
            ),
        )
        self._collector = TemplateCollector(api=kube, on_delete=self._metrics.template_deleted)
        self._stale = StaleClaimFinder(
            api=kube,
            after_s=settings.stale_after_s,
            may_release=settings.stale_claims == StaleClaims.RELEASE,
            report=partial(events.record, kube),
            on_release=self._metrics.stale_claim_released,
        )
        store = CertificateStore(
            api=kube, namespace=settings.namespace, secret=webhook.SECRET, hosts=settings.hosts
        )
        kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        self._keeper = CertificateKeeper(
            api=kube,
            current=store.current,
            configurations=[f"{kind}/{webhook.NAME}" for kind in kinds],
        )
        self._settings = settings
        self._page = Page(
            host=settings.host,
            port=settings.port,
            pages={"/metrics": self._exposition, "/healthz": lambda: b"ok\n"},
        )
        self._loops = tuple(self._make_loops(settings))
        self._election = Loop(name="election", step=self._leader.step, retry_s=1.0)

    def start(self) -> None:
        """Start every loop; returns at once. Raises OSError if the port is taken."""
        self._page.start()
        for loop in (self._election, *self._loops):
            loop.start()
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """Stop every loop, and let another one lead."""
        stop_all(*self._loops, self._election, *self._reflectors)
        self._leader.release()
        self._page.stop()

    def _make_loops(self, settings: ControllerSettings) -> list[Loop]:
        steps: list[tuple[str, Callable[[], object], float]] = [
            ("templates", self._collector.collect, settings.collect_interval_s),
            ("releases", self._release, _RELEASE_S),
            ("budgets", self._reconcile, settings.budget_interval_s),
        ]
        if settings.keep_ca_bundle:
            steps.append(("certificates", self._keeper.keep, _CERTIFICATES_S))
        if settings.stale_claims != StaleClaims.OFF:
            steps.append(("stale-claims", self._look_for_stale, settings.stale_interval_s))
        return [
            Loop(
                name=name,
                step=partial(self._while_leading, step, interval_s),
                retry_s=1.0,
                expected=(ApiError, ChargeUnavailable),
            )
            for name, step, interval_s in steps
        ]

    def _while_leading(self, step: Callable[[], object], interval_s: float) -> float:
        if not self._leader.leads:
            self._budgets.forget()
            return _FOLLOW_S
        step()
        return interval_s

    def _release(self) -> None:
        self._budgets.release()

    def _reconcile(self) -> None:
        if all(reflector.synced for reflector in self._reflectors):
            self._budgets.reconcile()

    def _look_for_stale(self) -> None:
        self._metrics.stale_claims(self._stale.look())

    def _whole_bytes(self) -> int | None:
        largest = self._inventory.snapshot().largest
        return None if largest is None else largest.memory_bytes

    def _exposition(self) -> bytes:
        self._metrics.leading(leads=self._leader.leads)
        return self._metrics.exposition()
