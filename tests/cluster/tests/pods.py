# SPDX-License-Identifier: Apache-2.0
"""Manifests for the test bed's own tests."""

import sys
from typing import Any

from tests.cluster import BUSYBOX_IMAGE, Object


def busybox(name: str, script: str, **spec: Any) -> Object:
    """A pod that runs a shell script; more fields of its spec by keyword."""
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def host_python(name: str, script: str, **spec: Any) -> Object:
    """A pod that runs a script with this machine's Python; it finds its credentials in /run/secrets."""
    credentials = "/var/run/secrets/kubernetes.io/serviceaccount"
    mount = f"mkdir -p /host/run/secrets && mount --bind {credentials} /host/run/secrets"
    pod = busybox(name, f'{mount} && exec chroot /host {sys.executable} -c "$SCRIPT"', **spec)
    container = pod["spec"]["containers"][0]
    container["env"] = [{"name": "SCRIPT", "value": script}]
    container["securityContext"] = {"privileged": True}
    container["volumeMounts"] = [{"name": "host", "mountPath": "/host"}]
    pod["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": "/"}}]
    return pod


def service(name: str, port: int, target: int) -> Object:
    """A Service in front of the pod of the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"name": "main", "port": port, "targetPort": target}]},
    }
