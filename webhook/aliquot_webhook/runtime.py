# SPDX-License-Identifier: Apache-2.0
"""Assembles the webhook's parts, starts and stops them."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final
from wsgiref.types import WSGIApplication

from aliquot_api import names
from aliquot_webhook import certs
from aliquot_webhook.app import create_app
from aliquot_webhook.budget import BudgetOffice
from aliquot_webhook.budgets import Budgets
from aliquot_webhook.charges import LEDGERS, Charges
from aliquot_webhook.inventory import LiveInventory
from aliquot_webhook.kube import Kube
from aliquot_webhook.loops import Loop, stop_all
from aliquot_webhook.metrics import Metrics
from aliquot_webhook.probe import Probe, ServerState
from aliquot_webhook.reflector import Reflector
from aliquot_webhook.review import Reviewer
from aliquot_webhook.settings import NAME, SECRET, CommonSettings, Settings
from aliquot_webhook.templates import ROOT, SELECTOR, Templates
from aliquot_webhook.tls import CertificateFolder, CertificateStore, ServingContext, client_name
from aliquot_webhook.trust import Trust
from aliquot_webhook.validate import Validator

logger = logging.getLogger(__name__)

_CERTIFICATE_S: Final = 3.0
_TELLING_S: Final = 0.5
"""Until the API server has been told of our authority nobody is ready."""
_STARTING: Final = ServerState(problem="Aliquot's webhook is starting; try again")


def slices_reflector(kube: Kube, inventory: LiveInventory) -> Reflector:
    """Which GPUs there are."""
    query = {"fieldSelector": f"spec.driver={names.DRIVER}"}
    return Reflector(
        name="resourceslices", api=kube, path=f"{ROOT}/resourceslices", query=query, sink=inventory
    )


def budget_reflectors(kube: Kube, budgets: Budgets) -> tuple[Reflector, Reflector]:
    """What namespaces may have."""
    path = f"{LEDGERS}/aliquotbudgets"
    return (
        Reflector(name="aliquotbudgets", api=kube, path=path, query={}, sink=budgets.budgets),
        Reflector(
            name="resourcequotas", api=kube, path="/api/v1/resourcequotas", query={}, sink=budgets.quotas
        ),
    )


def charges(kube: Kube, settings: CommonSettings, inventory: LiveInventory) -> Charges:
    """The ledgers."""

    def whole_bytes() -> int | None:
        largest = inventory.snapshot().largest
        return None if largest is None else largest.memory_bytes

    return Charges(
        api=kube,
        classes=settings.device_classes,
        whole_bytes=whole_bytes,
        reservation_s=settings.reservation_s,
    )


def may_ask(settings: Settings) -> Callable[[object], bool]:
    """Who may have reviews answered: anybody, unless clients have to show a certificate."""

    def known(connection: object) -> bool:
        name = client_name(connection)
        return name is not None and (name in settings.client_names or not settings.client_names)

    return known if settings.client_authority else lambda connection: True


class Runtime:
    """One serving process."""

    def __init__(self, *, settings: Settings, serving: ServingContext) -> None:
        kube = Kube.connect(kubeconfig=settings.kubeconfig or None, timeout_s=settings.api_timeout_s)
        self._metrics = Metrics()
        inventory = LiveInventory()
        templates = Templates(
            api=kube,
            grace_s=settings.template_grace_s,
            most_per_namespace=settings.max_templates,
            on_write=self._metrics.template_written,
        )
        budgets = Budgets(policy=settings.quota_policy)
        self._reflectors = (
            slices_reflector(kube, inventory),
            Reflector(
                name="resourceclaimtemplates",
                api=kube,
                path=f"{ROOT}/resourceclaimtemplates",
                query={"labelSelector": SELECTOR},
                sink=templates,
            ),
            *budget_reflectors(kube, budgets),
        )
        self._probe = Probe(
            api=kube,
            namespace=settings.namespace,
            on_state=lambda state: self._metrics.server_fits(fits=state.problem is None),
        )
        self._serving = serving
        self._trust = Trust(api=kube, configuration=NAME)
        self._is_told = False
        self._store: CertificateFolder | CertificateStore
        if settings.certificate_folder:
            self._store = CertificateFolder(folder=Path(settings.certificate_folder))
        else:
            self._store = CertificateStore(
                api=kube, namespace=settings.namespace, secret=SECRET, hosts=settings.hosts
            )
        self._certificates = Loop(name="certificates", step=self._load_certificate, retry_s=1.0)
        office = BudgetOffice(
            budgets=budgets,
            charges=charges(kube, settings, inventory),
            inventory=inventory.snapshot,
            classes=settings.device_classes,
            claim_makers=settings.claim_makers,
        )
        self.app: WSGIApplication = create_app(
            mutator=Reviewer(
                policy=settings.policy,
                inventory=inventory.snapshot,
                server=self._server,
                ensure_template=templates.ensure,
                budget=office,
            ),
            validator=Validator(
                api=kube,
                policy=settings.policy,
                inventory=inventory.snapshot,
                server=self._server,
                budget=office,
                classes=settings.device_classes,
            ),
            metrics=self._metrics,
            not_ready=self._not_ready,
            may_ask=may_ask(settings),
        )

    def start(self) -> None:
        """Start every thread; returns at once."""
        for part in (self._certificates, self._probe, *self._reflectors):
            part.start()

    def stop(self) -> None:
        """Stop every thread."""
        stop_all(*self._reflectors, self._probe, self._certificates)

    def _server(self) -> ServerState:
        """The server's state; a list that is refused, or has not come yet, counts too."""
        state = self._probe.state or _STARTING
        for reflector in self._reflectors:
            if state.problem is None and not reflector.synced:
                state = ServerState(problem=reflector.problem or _STARTING.problem)
        return state

    def _not_ready(self) -> list[str]:
        """What has no answer yet. A definite "no" is an answer: then pods are refused in clear words."""
        missing = [
            f"{part} has not answered"
            for part, answered in (
                ("the certificate's Secret", self._serving.loaded),
                ("whoever writes caBundle", self._is_told),
                ("the server's probe", self._probe.state is not None),
            )
            if not answered
        ]
        return missing + [
            f"the list of {reflector.name} has not arrived"
            for reflector in self._reflectors
            if not reflector.synced and reflector.problem is None
        ]

    def _load_certificate(self) -> float:
        bundle = self._store.current()
        if self._trust.may_serve(bundle, served_authority=self._serving.authority) and self._serving.use(
            bundle
        ):
            expires = certs.expiry(bundle)
            self._metrics.certificate_expires(expires.timestamp())
            logger.info("serving certificate", extra={"expires": expires})
        if not self._is_told:
            self._is_told = self._trust.is_told(self._serving.authority)
        return _CERTIFICATE_S if self._is_told else _TELLING_S
