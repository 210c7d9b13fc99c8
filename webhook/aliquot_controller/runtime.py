# SPDX-License-Identifier: Apache-2.0
"""Assembles the controller's loops, starts and stops them."""

from typing import Final

from aliquot_controller.certificates import CertificateKeeper
from aliquot_controller.templates import TemplateCollector
from aliquot_webhook.kube import Kube
from aliquot_webhook.loops import Loop
from aliquot_webhook.settings import NAME, SECRET, CommonSettings
from aliquot_webhook.tls import CertificateStore

_CERTIFICATES_S: Final = 10.0
_COLLECT_MOST_S: Final = 60.0


class Runtime:
    """All that the controller does, one thread each."""

    def __init__(self, *, settings: CommonSettings) -> None:
        kube = Kube.connect(kubeconfig=settings.kubeconfig or None, timeout_s=settings.api_timeout_s)
        self._collector = TemplateCollector(api=kube, grace_s=settings.template_grace_s)
        self._collect_s = min(settings.template_grace_s / 4, _COLLECT_MOST_S)
        store = CertificateStore(api=kube, namespace=settings.namespace, secret=SECRET, hosts=settings.hosts)
        self._keeper = CertificateKeeper(api=kube, current=store.current, configuration=NAME)
        self._loops = (
            Loop(name="certificates", step=self._keep_certificates, retry_s=1.0),
            Loop(name="templates", step=self._collect_templates),
        )

    def start(self) -> None:
        """Start every loop; returns at once."""
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Stop every loop."""
        for loop in self._loops:
            loop.stop()

    def _keep_certificates(self) -> float:
        self._keeper.keep()
        return _CERTIFICATES_S

    def _collect_templates(self) -> float:
        self._collector.collect()
        return self._collect_s
