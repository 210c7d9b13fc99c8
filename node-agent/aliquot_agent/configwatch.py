# SPDX-License-Identifier: Apache-2.0
"""Keeps the node's policy as the ConfigMap says, live; a document that is not understood changes nothing.

Without the ConfigMap the agent's own settings count. While the server is away, also at start, what was
understood last: it is kept in a file.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from aliquot_agent import files, nodeconfig
from aliquot_agent.errors import ApiError
from aliquot_agent.kube import Watch
from aliquot_agent.loops import Loop
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_api.errors import InvalidInput

logger = logging.getLogger(__name__)

NAME: Final = "aliquot-node-config"
KEY: Final = "config.yaml"
REASON: Final = "NodeConfigInvalid"
_WATCH_S: Final = 300
"""Labels of the node are looked at again this often."""
_RETRY_S: Final = 5.0
_PAUSE_S: Final = 1.0
"""Between two watches: a server may end each at once."""


class ConfigApi(Protocol):
    """What is asked of the API server (kube.Kube)."""

    def get_node(self, name: str) -> dict[str, Any]:
        """The Node object."""

    def get_config_map(self, namespace: str, name: str) -> dict[str, Any]:
        """A ConfigMap; raises ApiError."""

    def config_map_watch(self, namespace: str, name: str) -> Watch:
        """A watch on one ConfigMap."""


class ConfigWatch:
    """The policy of this node. `start`, then `stop`; `policy` at any time."""

    def __init__(
        self,
        *,
        api: ConfigApi,
        node: str,
        namespace: str,
        base: NodePolicy,
        kept: Path,
        changed: Callable[[], None],
        complain: Callable[[str, str], None],
    ) -> None:
        self._api = api
        self._node = node
        self._namespace = namespace
        self._base = base
        self._kept = kept
        self._changed = changed
        self._complain = complain
        self._policy = base
        self._problem = ""
        self._labels: dict[str, str] = {}
        self._watch = api.config_map_watch(namespace, NAME)
        self._loop = Loop(name="config-watch", step=self._follow, period_s=_PAUSE_S)

    def load(self) -> None:
        """Takes what was understood last, before anything else begins."""
        try:
            document = json.loads(self._kept.read_text())
            text, self._labels = str(document["text"]), dict(document["labels"])
            config = nodeconfig.decode(text)
            self._policy = config.resolve(node=self._node, labels=self._labels, base=self._base)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.error("the last node configuration is lost", extra={"error": str(error)})

    def start(self) -> None:
        """Begins to watch."""
        self._loop.start()

    def stop(self) -> None:
        """Ends it."""
        self._watch.stop()
        self._loop.stop()

    def policy(self) -> NodePolicy:
        """What counts now."""
        return self._policy

    @property
    def problem(self) -> str:
        """Why the document that is there does not count; empty when it does."""
        return self._problem

    def read(self) -> None:
        """Takes the ConfigMap as it is now, if the server answers: so that the first slice is right."""
        config_map: dict[str, Any] | None = None
        try:
            self._labels = dict(self._api.get_node(self._node)["metadata"].get("labels") or {})
        except ApiError as error:  # also 404: a node that is gone says nothing about its configuration
            logger.warning("node cannot be read", extra={"error": str(error)})
            return
        try:
            config_map = self._api.get_config_map(self._namespace, NAME)
        except ApiError as error:
            if error.status != 404:
                logger.warning("node configuration cannot be read", extra={"error": str(error)})
                return
        self._take(config_map)

    def _follow(self) -> None:
        self.read()
        try:
            for kind, config_map in self._watch.follow("", timeout_s=_WATCH_S):
                self._take(None if kind == "DELETED" else config_map)
        except ApiError as error:
            if not self._loop.stopping:
                logger.warning("node configuration cannot be watched", extra={"error": str(error)})
            self._loop.pause(_RETRY_S)

    def _take(self, config_map: dict[str, Any] | None) -> None:
        policy, problem, text = self._base, "", None
        try:
            if config_map is not None:
                text = (config_map.get("data") or {}).get(KEY)
                if text is None:
                    raise InvalidInput(
                        field=NAME, value=sorted(config_map.get("data") or {}), fix=f"want {KEY}"
                    )
                config = nodeconfig.decode(text)
                policy = config.resolve(node=self._node, labels=self._labels, base=self._base)
        except InvalidInput as error:
            problem = str(error)
        if problem:
            if problem != self._problem:
                logger.error(
                    "node configuration is not understood, the last one stays", extra={"error": problem}
                )
                self._complain(REASON, f"ConfigMap {self._namespace}/{NAME} changes nothing: {problem}")
            self._problem = problem
            return
        self._problem = ""
        self._keep(text)
        if policy != self._policy:
            self._policy = policy
            logger.info("node configuration taken", extra={"policy": policy})
            self._changed()

    def _keep(self, text: str | None) -> None:
        """Remembers for the next start; it is only worth a warning where that fails."""
        try:
            if text is None:
                self._kept.unlink(missing_ok=True)
                return
            data = json.dumps({"labels": self._labels, "text": text}).encode()
            if not self._kept.exists() or self._kept.read_bytes() != data:
                files.write_atomic(self._kept, data, mode=0o600)
        except OSError as error:
            logger.warning("node configuration cannot be kept", extra={"error": str(error)})
