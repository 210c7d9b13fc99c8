# SPDX-License-Identifier: Apache-2.0
"""Puts the agent together, starts its parts in order and stops them in reverse.

In a rolling update two agents run on a node. Both answer kubelet, behind locks that they share; one, the
leader, publishes, watches, enforces, reports and clears up. The other one takes over when it ends.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aliquot_agent import devices, fit, held, outside, processes, registration
from aliquot_agent.basespecs import BaseSpecs
from aliquot_agent.checkpoint import Checkpoints
from aliquot_agent.claims import ClaimRef, Claims
from aliquot_agent.configwatch import ConfigWatch
from aliquot_agent.cores import Cores
from aliquot_agent.devices import Device
from aliquot_agent.discovery import Discovery
from aliquot_agent.enforce import Enforcer
from aliquot_agent.events import Events
from aliquot_agent.executioner import Executioner
from aliquot_agent.grower import Grower
from aliquot_agent.hamimetrics import HamiCollector
from aliquot_agent.hardware import Hardware
from aliquot_agent.health import Condition
from aliquot_agent.healthservice import DeviceHealth, HealthService
from aliquot_agent.healthwatch import HealthWatch
from aliquot_agent.intruders import Intruders
from aliquot_agent.kept import Ways
from aliquot_agent.kube import Kube
from aliquot_agent.library import Library
from aliquot_agent.locks import Leadership, Locks
from aliquot_agent.loops import Loop
from aliquot_agent.metrics import AgentCollector, Metrics, Sources, User
from aliquot_agent.mpswatch import MpsWatch
from aliquot_agent.nodepolicy import GpuPolicy, NodePolicy
from aliquot_agent.nvml import Load, Nvml
from aliquot_agent.outside import Outside
from aliquot_agent.pages import PageServer
from aliquot_agent.parts import Part, stop_together
from aliquot_agent.picture import Observation
from aliquot_agent.plugin import DraPlugin
from aliquot_agent.pods import Pods
from aliquot_agent.publisher import Publisher
from aliquot_agent.readiness import Readiness
from aliquot_agent.reconcile import Reconciler
from aliquot_agent.report import Reporter
from aliquot_agent.settings import Settings
from aliquot_agent.status import Status
from aliquot_agent.store import Store
from aliquot_agent.watcher import Watcher

logger = logging.getLogger(__name__)

_REGISTRATION: Final = "registration"
_TAKE_OVER_S: Final = 0.5
EVENT_REFUSED: Final = "GPUShareRefused"


class Agent:
    """The whole agent. `start`, `wait`, `stop`; `failed` says why it ended by itself."""

    def __init__(self, *, settings: Settings, kube: Kube) -> None:
        self._settings = settings
        self._readiness = Readiness()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()  # reentrant: signal handlers put
        self.failed: str | None = None
        node, boot_id = settings.node_name, settings.boot_id_file.read_text().strip()
        self._events = Events(api=kube, node=node, monotonic_s=time.monotonic)
        self._config = ConfigWatch(
            api=kube,
            node=node,
            namespace=settings.namespace,
            base=NodePolicy(
                defaults=GpuPolicy(reserve_bytes=settings.reserve_bytes, shares=settings.shares_per_gpu)
            ),
            kept=settings.plugin_dir / "node-config.json",
            changed=self._changed,
            complain=self._events.node,
        )
        self._hardware = Hardware(open_nvml=Nvml, readiness=self._readiness, policy=self._config.policy)
        self._discovery = Discovery(
            hardware=self._hardware,
            api=kube,
            node=node,
            device_plugins_dir=settings.device_plugins_dir,
            changed=self._changed,
            complain=self._events.node,
        )
        locks = self._locks = Locks(directory=settings.plugin_dir)
        checkpoints = Checkpoints(directory=settings.checkpoint_dir, alone=locks.alone)
        library = Library(source=settings.library, state_dir=settings.state_dir)
        self._store = Store(
            claims_dir=settings.claims_dir,
            old_claims_dir=settings.old_claims_dir,
            mps_dir=settings.mps_dir,
            cdi_dir=settings.cdi_dir,
            checkpoints=checkpoints,
            library=library,
            boot_id=boot_id,
            attributes=self._hardware.attributes,
        )
        self._pods = Pods(api=kube, node=node, guarded=settings.guarded_dirs, changed=self._pods_changed)
        ways = Ways(directory=settings.sharing_dir)
        self._claims = Claims(
            node=node,
            boot_id=boot_id,
            source=self._pods,
            gpus=self._hardware,
            checkpoints=checkpoints,
            base=BaseSpecs(
                directories=settings.base_cdi_dirs,
                kind=settings.base_cdi_kind,
                host_root=settings.host_root,
            ),
            store=self._store,
            locks=locks,
            context_estimate_bytes=settings.context_estimate_bytes,
            refused=self._refused,
            privilege=self._pods.privilege,
            await_ways=ways.await_all,
        )
        self._health = HealthWatch(
            gpus=self._hardware,
            policy=self._config.policy,
            path=settings.plugin_dir / "health.json",
            boot_id=boot_id,
            calm_s=settings.health_calm_s,
            changed=self._changed,
            tell=self._events.node,
        )
        self._health_service = HealthService(devices=self._device_health)
        self._publisher = Publisher(api=kube, node=node, devices=self._devices, readiness=self._readiness)
        self._outside = Outside(quiet_s=settings.outside_quiet_s)
        claims_on, old_claims_on, library_on = (
            processes.disk_of(path.resolve())
            for path in (settings.claims_dir, settings.old_claims_dir, settings.state_dir)
        )
        executioner = Executioner()
        enforcer = Enforcer(killer=executioner, api=kube, events=self._events, policy=self._config.policy)
        self._watcher = Watcher(
            claims=self._claims,
            hardware=self._hardware,
            pods=self._pods,
            judge=enforcer,
            outside=self._outside,
            policy=self._config.policy,
            changed=self._publisher.poke,
            mounted=lambda pid: processes.mounted_shares(pid, claims=(claims_on, old_claims_on)),
            escape=lambda key: self._cores.escape(key),  # noqa: PLW0108  # made below
            has_library=lambda pid: processes.has_library(pid, disk=library_on),
        )
        self._grower = Grower(
            api=kube,
            node=node,
            claims=self._claims,
            pods=self._pods,
            events=self._events,
            policy=self._config.policy,
            picture=self._watcher.picture,
            room=self._room,
            publish=self._publisher.poke,
            settle_s=settings.settle_s,
        )
        self._cores = Cores(
            claims=self._claims,
            policy=self._config.policy,
            hardware=self._hardware,
            picture=self._watcher.picture,
            events=self._events,
        )
        self._intruders = Intruders(
            api=kube,
            pods=self._pods,
            claims=self._claims.prepared,
            policy=self._config.policy,
            events=self._events,
        )
        self._mps = MpsWatch(
            claims=self._claims.prepared, kept=ways.kept, holders=self._pods.holders, events=self._events
        )
        reporter = Reporter(
            api=kube,
            node=node,
            observations=lambda: self._watcher.picture().observations,
            health=self._health.mark,
            resizes=self._grower.mark,
            interval_s=settings.report_interval_s,
        )
        reconciler = Reconciler(
            claims=self._claims,
            store=self._store,
            library=library,
        )
        metrics = Metrics()
        sources = self._sources()
        metrics.register(AgentCollector(sources))
        if settings.hami_metrics:
            metrics.register(HamiCollector(sources))
        self._leading = False
        status = Status(sources=sources, readiness=self._readiness, leader=lambda: self._leading)
        pages = PageServer(
            port=settings.metrics_port,
            pages={"/metrics": metrics.page, "/status": status.page},
            readiness=self._readiness,
        )
        servers = registration.Servers(
            paths=registration.sockets(
                plugin_dir=settings.plugin_dir, registry_dir=settings.registry_dir, pod_uid=settings.pod_uid
            ),
            plugin=DraPlugin(
                claims=self._claims,
                prepared=metrics.prepared,
                unprepared=metrics.unprepared,
                failed=metrics.failed,
            ),
            health=self._health_service,
            registered=self._registered,
        )
        self._leadership = Leadership(directory=settings.plugin_dir)
        self._leader = Loop(name="leader", step=self._try_to_lead, period_s=_TAKE_OVER_S)
        self._always: tuple[Part, ...] = (self._events, pages, self._discovery, servers, self._leader)
        """Of every agent, in order: claims are there before kubelet's calls can come."""
        self._led: tuple[Part, ...] = (
            self._config,
            self._health,
            self._pods,
            executioner,
            enforcer,
            self._intruders,
            self._watcher,
            self._cores,
            self._mps,
            self._grower,
            reporter,
            reconciler,
            self._publisher,
        )
        """Of the leader."""
        self._started: list[Part] = []

    def start(self) -> None:
        """What kubelet needs comes first; what needs the API server waits for nobody."""
        threading.excepthook = self._thread_died
        self._readiness.refuse(_REGISTRATION, "kubelet has not registered the driver yet")
        self._config.load()
        self._health.load()  # kubelet may ask the agent that does not lead, too
        self._hardware.refresh()
        self._claims.start()
        for part in self._always:
            self._begin(part)

    def wait(self) -> None:
        """Until `end`, or until the agent cannot go on."""
        self._ended.get()

    def end(self) -> None:
        """Makes `wait` return; safe in a signal handler."""
        self._ended.put(None)

    def stop(self) -> None:
        """Ends every thread and removes both sockets, within seconds. Running pods notice nothing."""
        # The leader's loop starts others; NVML and leadership are needed until the others have ended.
        self._stop_together([self._leader.stop])
        self._stop_together([part.stop for part in self._started if part is not self._leader])
        self._stop_together([self._hardware.close, self._leadership.give_up])

    def _stop_together(self, stops: Sequence[Callable[[], None]]) -> None:
        problem = stop_together(stops)
        self.failed = self.failed or problem

    def _begin(self, part: Part) -> None:
        self._started.append(part)
        part.start()

    def _try_to_lead(self) -> None:
        if self._leading or not self._leadership.take(wait=False):
            return
        logger.info("leading: this agent publishes, watches and reports")
        self._store.clear(self._locks.of)
        self._config.read()
        self._discovery.look()
        for part in self._led:
            if self._leader.stopping:
                return
            self._begin(part)
        self._leading = True

    def _changed(self) -> None:
        """GPUs, their health, or what is decided about them are others now."""
        self._publisher.poke()
        self._health_service.poke()

    def _pods_changed(self) -> None:
        self._grower.poke()
        self._intruders.poke()

    def _devices(self) -> list[Device]:
        claims = self._claims.prepared()
        return self._hardware.published(
            most_bytes=fit.held_whole(claims),
            withheld_bytes=outside.withheld(
                claims,
                self._hardware.by_device(),
                reserve_bytes=lambda gpu: self._hardware.policy_of(gpu).reserve_bytes,
                outside_bytes=self._outside.withheld_bytes,
            ),
            taken_bytes=fit.taken(claims),
            taints=self._health.taints(),
            ways=held.by_device(claims),
        )

    def _room(self, device: str) -> int | None:
        """Memory of a GPU for shares and their growth together; None: no such GPU."""
        gpu = self._hardware.by_device().get(device)
        if gpu is None:
            return None
        policy = self._hardware.policy_of(gpu)
        held_bytes = max(0, self._outside.withheld_bytes(gpu.uuid) - policy.reserve_bytes)
        return devices.offered_bytes(gpu, policy=policy, withheld_bytes=held_bytes)

    def _device_health(self) -> list[DeviceHealth]:
        conditions = self._health.conditions()
        found = []
        for name, gpu in self._hardware.by_device().items():
            condition = conditions.get(gpu.uuid, Condition())
            message = self._health.mark(gpu.uuid).message
            found.append(DeviceHealth(self._settings.node_name, name, condition.healthy, message))
        return found

    def _sources(self) -> Sources:
        return Sources(
            node=self._settings.node_name,
            picture=self._watcher.picture,
            users=self._users,
            gpus=self._hardware.by_device,
            loads=self._loads,
            offered_bytes=self._publisher.offered_bytes,
            conditions=self._health.conditions,
            left_out=self._hardware.left_out,
            slice_writes=self._publisher.counts,
            config_problem=lambda: self._config.problem,
            paced=self._cores.paced,
            untold=self._cores.untold,
            mps_lost=self._mps.lost,
        )

    def _loads(self) -> dict[str, Load]:
        nvml = self._hardware.nvml
        gpus = self._hardware.by_device().values()
        return {} if nvml is None else {gpu.uuid: nvml.load(gpu.uuid) for gpu in gpus}

    def _users(self, seen: Observation) -> Sequence[User]:
        """The containers that have a share; of pods that the watch has not shown yet the name alone."""
        found = [
            User(pod.namespace, pod.name, container, tuple(pod.containers).index(container))
            for pod in self._pods.holders(seen.claim)
            for container in pod.containers_of(seen.claim, seen.share)
        ]
        return found or [User(seen.claim.namespace, name, "", 0) for name in self._pods.awaited(seen.claim)]

    def _refused(self, ref: ClaimRef, claim: Mapping[str, Any] | None, message: str) -> None:
        """Tells the claim and its pods why it is not prepared."""
        self._events.claim(
            namespace=ref.namespace, name=ref.name, uid=ref.uid, reason=EVENT_REFUSED, message=message
        )
        for holder in ((claim or {}).get("status") or {}).get("reservedFor") or []:
            if holder.get("resource") == "pods":
                self._events.pod(
                    namespace=ref.namespace,
                    name=str(holder["name"]),
                    uid=str(holder["uid"]),
                    reason=EVENT_REFUSED,
                    message=message,
                )

    def _registered(self, accepted: bool, error: str) -> None:
        if accepted:
            logger.info("kubelet registered the driver")
            self._readiness.allow(_REGISTRATION)
        else:
            self._fail(f"kubelet refused the driver: {error}")

    def _thread_died(self, arguments: threading.ExceptHookArgs) -> None:
        """A defect: better a restart than an agent that does half its work."""
        name = arguments.thread.name if arguments.thread else "?"
        error = arguments.exc_value
        logger.critical("thread died", extra={"name_of_thread": name}, exc_info=error)
        self._fail(f"thread {name} died: {error!r}")

    def _fail(self, reason: str) -> None:
        self.failed = reason
        self._ended.put(None)
