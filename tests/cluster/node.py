# SPDX-License-Identifier: Apache-2.0
"""One node: its namespaces and private folders, and the files and command lines of its daemons."""

import json
import os
import shlex
import uuid
from dataclasses import dataclass
from pathlib import Path

import yaml

from .binaries import Binaries
from .controlplane import server_url
from .images import PAUSE_IMAGE
from .pki import kubeconfig
from .processes import Daemon
from .spec import Addresses, Layout, Spec
from .system import run

CONTAINERD, KUBELET, KUBE_PROXY = "containerd", "kubelet", "kube-proxy"
DAEMONS = (CONTAINERD, KUBELET, KUBE_PROXY)
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

# Settings of the whole machine that kubelet writes unless it finds them as it likes them: nodes see these
# copies, and the machine keeps its own.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


@dataclass(frozen=True, slots=True)
class Node:
    """The node `number` of a cluster. Data and files; Cluster runs what is described here."""

    number: int
    name: str
    layout: Layout
    spec: Spec
    addresses: Addresses
    binaries: Binaries
    cgroup_root: str

    @property
    def folder(self) -> Path:
        return self.layout.node(self.name)

    @property
    def holder(self) -> str:
        """The name of the process that keeps the node's namespaces."""
        return f"{self.name}/holder"

    @property
    def _is_held(self) -> Path:
        return self.folder / "held"

    @property
    def disk(self) -> Path:
        """The file behind /var/lib, if that has a size of its own."""
        return self.folder / "disk.img"

    def is_held(self) -> bool:
        """Whether the holder has finished setting the node up."""
        return self._is_held.exists()

    def prepare(self) -> None:
        """Write what survives the node's reboots."""
        for name in ("etc", "etc.work", "var-lib", "var-log", "cni", "kernel"):
            (self.folder / name).mkdir(parents=True)
        if self.spec.node_disk_bytes is not None:
            self.disk.touch()
            os.truncate(self.disk, self.spec.node_disk_bytes)
            run("mkfs.ext4", "-q", "-m", "0", self.disk)
        for setting, value in KERNEL_SETTINGS.items():
            (self.folder / "kernel" / setting.replace("/", ".")).write_text(f"{value}\n")
        (self.folder / "cni/10-testbed.conflist").write_text(json.dumps(self._cni()))
        (self.folder / "containerd.toml").write_text(self._containerd())
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))
        (self.folder / "kube-proxy.yaml").write_text(yaml.safe_dump(self._kube_proxy()))
        url = server_url(self.addresses)
        for file, identity in ((KUBELET, self.name), (KUBE_PROXY, KUBE_PROXY)):
            (self.folder / f"{file}.kubeconfig").write_text(kubeconfig(self.layout.pki, identity, url))

    def boot(self) -> Daemon:
        """The holder of a new life of the node: /run is empty, the boot id is new, /etc and /var are kept."""
        self._is_held.unlink(missing_ok=True)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        script = self.folder / "boot.sh"
        script.write_text("\n".join(self._boot_script()) + "\n")
        return Daemon(
            self.holder,
            ("unshare", "--net", "--mount", "--uts", "--propagation", "private", "/bin/sh", str(script)),
        )

    def _boot_script(self) -> list[str]:
        def at(name: str) -> str:
            return shlex.quote(str(self.folder / name))

        options = f"lowerdir=/etc,upperdir={self.folder}/etc,workdir={self.folder}/etc.work"
        disk = f"mount -o loop {at('disk.img')} /var/lib"
        return [
            "set -e",
            "cd /",
            f"hostname {self.name}",
            "mount -t tmpfs -o mode=755 tmpfs /run",
            f"mount -t overlay -o {shlex.quote(options)} overlay /etc",
            disk if self.spec.node_disk_bytes is not None else f"mount --bind {at('var-lib')} /var/lib",
            f"mount --bind {at('var-log')} /var/log",
            f"mount --bind {at('boot_id')} /proc/sys/kernel/random/boot_id",
            *(
                f"mount --bind {at('kernel/' + setting.replace('/', '.'))} /proc/sys/{setting}"
                for setting in KERNEL_SETTINGS
            ),
            "mount --make-rshared /",
            f": >{at('held')}",
            "exec sleep infinity",
        ]

    def daemons(self, *, holder: int) -> list[Daemon]:
        """The node's daemons, to be run in the namespaces that `holder` keeps."""
        enter = ("nsenter", "-t", str(holder), "-m", "-n", "-u")
        kubernetes = self.binaries.kubernetes
        kubelet = (
            str(kubernetes / KUBELET),
            f"--config={self.folder}/kubelet.yaml",
            f"--kubeconfig={self.folder}/kubelet.kubeconfig",
            f"--hostname-override={self.name}",
            f"--node-ip={self.addresses.node(self.number)}",
        )
        containerd = (
            str(self.binaries.containerd / CONTAINERD),
            "--config",
            f"{self.folder}/containerd.toml",
        )
        proxy = (str(kubernetes / KUBE_PROXY), f"--config={self.folder}/kube-proxy.yaml")
        return [
            Daemon(f"{self.name}/{CONTAINERD}", (*enter, *containerd)),
            Daemon(f"{self.name}/{KUBELET}", (*enter, *kubelet)),
            Daemon(f"{self.name}/{KUBE_PROXY}", (*enter, *proxy)),
        ]

    def _cni(self) -> dict[str, object]:
        # ptp, not bridge: every packet is routed, so Services work within a node without br_netfilter.
        pods = self.addresses.node_pods(self.number)
        return {
            "cniVersion": "1.0.0",
            "name": "testbed",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": "/run/cni/networks",
                    },
                },
                {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}},
            ],
        }

    def _containerd(self) -> str:
        return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  restrict_oom_score_adj = true  # no container starts without CAP_SYS_RESOURCE otherwise
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{self.binaries.cni}"]
    conf_dir = "{self.folder}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "{self.binaries.runc}/runc"
        SystemdCgroup = false
"""

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "featureGates": dict(self.spec.gates),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.layout.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup_root,
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,  # never: there is no registry to fetch them from again
            "resolvConf": "/dev/null",
            # Cluster DNS does not exist. At this address look-ups fail at once instead of timing out.
            "clusterDNS": ["127.0.0.1"],
            "clusterDomain": "cluster.local",
            "nodeLeaseDurationSeconds": 8,
            "nodeStatusReportFrequency": "10s",
            # A pod whose claim could not be prepared is looked at again only then.
            "syncFrequency": "10s",
            "maxPods": 250,
            "serializeImagePulls": False,
            "kubeAPIQPS": 500,
            "kubeAPIBurst": 1000,
            "eventRecordQPS": 0,
        }

    def _kube_proxy(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "featureGates": dict(self.spec.gates),
            "mode": "nftables",
            "nftables": {"minSyncPeriod": "100ms"},
            "clientConnection": {"kubeconfig": f"{self.folder}/kube-proxy.kubeconfig"},
            "clusterCIDR": self.addresses.pods,
            "detectLocalMode": "ClusterCIDR",
            "hostnameOverride": self.name,
            # Zeros leave the machine's connection tracking as it is.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
                "udpTimeout": "0s",
                "udpStreamTimeout": "0s",
            },
        }
