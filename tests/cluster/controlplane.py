# SPDX-License-Identifier: Apache-2.0
"""The command lines and files of etcd, the API server, the controller manager and the scheduler."""

from pathlib import Path

import yaml

from .binaries import Binaries
from .pki import Identity, create, kubeconfig
from .processes import Daemon
from .spec import Addresses, Layout, Spec

HOLDER = "holder"
ETCD, API_SERVER = "etcd", "apiserver"
CONTROLLER_MANAGER, SCHEDULER = "controller-manager", "scheduler"
DAEMONS = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER)

# Nodes are missed after 15 s instead of Kubernetes' 50 s: tests that cut them off wait for it.
NODE_GRACE = ("--node-monitor-period=1s", "--node-monitor-grace-period=15s")


def server_url(addresses: Addresses) -> str:
    """The API server as nodes and the host reach it."""
    return f"https://{addresses.control_plane}:6443"


def prepare(layout: Layout, spec: Spec, addresses: Addresses) -> None:
    """Write the files that the control plane and its clients need."""
    layout.control.mkdir(parents=True)
    service = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    create(
        layout.pki,
        [
            Identity(
                file="apiserver",
                user="kube-apiserver",
                names=(*service, "kubernetes.default.svc.cluster.local"),
                addresses=(
                    addresses.control_plane,
                    addresses.uplink,
                    addresses.kubernetes_service,
                    "127.0.0.1",
                ),
            ),
            Identity(file="apiserver-kubelet", user="kube-apiserver-kubelet", group="system:masters"),
            Identity(file="admin", user="testbed-admin", group="system:masters"),
            Identity(file=CONTROLLER_MANAGER, user="system:kube-controller-manager"),
            Identity(file=SCHEDULER, user="system:kube-scheduler"),
            Identity(file="kube-proxy", user="system:kube-proxy"),
            *(
                Identity(file=node, user=f"system:node:{node}", group="system:nodes")
                for node in spec.node_names
            ),
        ],
    )
    url = server_url(addresses)
    layout.kubeconfig.write_text(kubeconfig(layout.pki, "admin", url))
    layout.kubeconfig.chmod(0o600)
    for client in (CONTROLLER_MANAGER, SCHEDULER):
        (layout.control / f"{client}.kubeconfig").write_text(kubeconfig(layout.pki, client, url))
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
    (layout.control / "audit-policy.yaml").write_text(yaml.safe_dump(policy))
    layout.audit_log.touch()


def daemons(
    layout: Layout, spec: Spec, addresses: Addresses, binaries: Binaries, *, holder: int
) -> list[Daemon]:
    """The control plane's daemons, to be run in the network namespace that `holder` keeps."""
    enter = ("nsenter", "-t", str(holder), "-n")
    gates = (f"--feature-gates={spec.gate_text}",) if spec.gates else ()

    def kubernetes(name: str, program: str, *flags: str) -> Daemon:
        return Daemon(name, (*enter, str(binaries.kubernetes / program), *flags, *gates))

    control, pki = layout.control, layout.pki
    return [
        Daemon(ETCD, (*enter, str(binaries.etcd / "etcd"), *_etcd_flags(control / "etcd"))),
        kubernetes(
            API_SERVER, "kube-apiserver", *_api_server_flags(layout, addresses), *spec.api_server_flags
        ),
        kubernetes(
            CONTROLLER_MANAGER,
            "kube-controller-manager",
            f"--kubeconfig={control / CONTROLLER_MANAGER}.kubeconfig",
            f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            *NODE_GRACE,
        ),
        kubernetes(
            SCHEDULER,
            "kube-scheduler",
            f"--kubeconfig={control / SCHEDULER}.kubeconfig",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ),
    ]


def _etcd_flags(data: Path) -> tuple[str, ...]:
    return (
        f"--data-dir={data}",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=default=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # a test's data need not survive a power cut
        "--log-level=warn",
    )


def _api_server_flags(layout: Layout, addresses: Addresses) -> tuple[str, ...]:
    pki = layout.pki
    return (
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={addresses.control_plane}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={addresses.services}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        # There is no kube-proxy here: webhooks behind a Service are called at their pods' addresses.
        "--enable-aggregator-routing",
        f"--audit-policy-file={layout.control / 'audit-policy.yaml'}",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-maxsize=100000",  # MB, so never rotated
        "--shutdown-delay-duration=0s",
    )
