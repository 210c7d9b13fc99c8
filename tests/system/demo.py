# SPDX-License-Identifier: Apache-2.0
"""The demo: a real cluster, a simulated GPU, and pods that share it, told as a story.

It checks what it tells: where something else happens it says so and ends with status 1.
"""

import shlex
import sys
import time
from typing import Final

from aliquot_api import names
from tests.cluster.cluster import Cluster
from tests.cluster.collect import collect
from tests.cluster.system import TestbedError
from tests.system.images import BUILD, CLIENT
from tests.system.installation import (
    NAMESPACE,
    TEST_VALUES,
    Installation,
    gates,
    kubernetes_version,
)
from tests.system.workloads import MIB, Tenant, gpu_pod
from tests.testkit.chart import CHART

NAME: Final = "demo"
LIMIT_MIB: Final = 8000


def main() -> int:
    started = time.monotonic()
    chapter("A Kubernetes of one node on this machine")
    bed = Cluster.up(name=NAME, kubernetes=kubernetes_version(), gates=gates(), keep=True)
    show(bed, "get", "nodes")
    try:
        tell_story(bed)
    except (TestbedError, AssertionError) as error:
        folder = BUILD / "failures" / "demo"
        collect(bed, folder)
        sys.stderr.write(
            f"\nThe demo went wrong: {error}\nLogs and objects are in {folder}; make demo-down cleans up.\n"
        )
        return 1
    say(f"\nThat took {time.monotonic() - started:.0f} s.")
    look_around(bed)
    return 0


def tell_story(bed: Cluster) -> None:
    chapter("Install Aliquot, and a simulated L4 on the node")
    aliquot = Installation(bed, values=TEST_VALUES)
    aliquot.install()
    aliquot.wait_ready()
    show(bed, "get", "pods", "-n", NAMESPACE)
    [node] = bed.nodes
    [device] = aliquot.devices(node)
    say(f"The node publishes one GPU of {device['capacity']['memory']['value']}, for several tenants.")

    chapter("A team labels its namespace, and asks in the words it knows from HAMi")
    team = Tenant(bed, namespace="team-a", labels={names.INJECT_LABEL: names.INJECT_ENABLED})
    say(f"kubectl label namespace team-a {names.INJECT_LABEL}={names.INJECT_ENABLED}")
    say(f"limits: {{nvidia.com/vgpu: 1, nvidia.com/gpumem: {LIMIT_MIB}}}, three times")
    share_one_gpu(aliquot, team, node)
    leave_others_alone(aliquot, team)
    clean_up(aliquot, team, node)
    team.create(gpu_pod("playground", vgpu=1, gpumem=LIMIT_MIB))
    team.wait_said("playground", "going on")


def share_one_gpu(aliquot: Installation, team: Tenant, node: str) -> None:
    bed = team.bed
    team.create(gpu_pod("train", vgpu=1, gpumem=LIMIT_MIB))
    python = ("python3", "/usr/local/bin/fill.py")
    team.create(gpu_pod("infer", vgpu=1, gpumem=LIMIT_MIB, command=python))
    for pod in ("train", "infer"):
        team.wait_said(pod, "device")
    team.create(gpu_pod("third", vgpu=1, gpumem=LIMIT_MIB))
    for pod in ("train", "infer"):
        device, full, going_on = (team.wait_said(pod, event) for event in ("device", "full", "going on"))
        say(f"{pod}: sees {device['name']} with {device['total_mib']} MiB")
        say(
            f"{pod}: took {full['allocated_mib']} MiB beside its context; "
            f"for one more page: CUDA_ERROR_OUT_OF_MEMORY ({full['result']})"
        )
        say(f"{pod}: gave half back and goes on with {going_on['allocated_mib']} MiB")
    peaks = [aliquot.peak_bytes(node, pod) for pod in ("train", "infer")]
    shown = ", ".join(f"{peak / MIB:.1f}" for peak in peaks)
    say(f"The driver's own books: peaks of {shown} MiB; never more.")
    assert all(peak <= LIMIT_MIB * MIB for peak in peaks), peaks
    bed.wait_for(lambda: team.reported("train"), what="the claim to show limit and use")
    say("The claim knows it, too:")
    claim = team.claim_of("train")["metadata"]["name"]
    show(bed, "get", "resourceclaim", "-n", team.namespace, claim, "-o", "jsonpath={.status.devices[0].data}")
    say("\nThe third waits for memory:")
    show(bed, "get", "pods", "-n", team.namespace)
    assert bed.get("pods", "third", team.namespace)["status"]["phase"] == "Pending"
    say("train ends, and the third runs:")
    team.delete("train")
    team.wait_said("third", "device")
    show(bed, "get", "pods", "-n", team.namespace)


def leave_others_alone(aliquot: Installation, team: Tenant) -> None:
    bed = team.bed
    chapter("Pods without a GPU never meet us, also when our webhook is dead")
    bed.kubectl("-n", NAMESPACE, "scale", "deployment/aliquot-webhook", "--replicas=0")
    selector = "app.kubernetes.io/name=aliquot-webhook"
    bed.wait_for(lambda: not bed.list("pods", NAMESPACE, labels=selector), what="the webhook to be gone")
    team.create(gpu_pod("plain", command=("sleep", "infinity")))
    bed.wait_for_pod("plain", team.namespace)
    say("plain: runs")
    say(f"a GPU pod: {team.refusal(gpu_pod('refused', vgpu=1, gpumem=LIMIT_MIB))}")
    say("Refused, not started without a limit. The webhook comes back.")
    bed.kubectl("-n", NAMESPACE, "scale", "deployment/aliquot-webhook", "--replicas=2")
    aliquot.wait_ready()
    say(f"And a pod that asks for too much: {team.refusal(gpu_pod('greedy', vgpu=1, gpumem=80000))}")


def clean_up(aliquot: Installation, team: Tenant, node: str) -> None:
    bed = team.bed
    chapter("Deleting everything leaves nothing")
    for pod in ("infer", "third", "plain"):
        team.delete(pod)
    bed.wait_for(lambda: not bed.list("resourceclaims", team.namespace), what="no claim")
    bed.wait_for(lambda: not bed.list("resourceclaimtemplates", team.namespace), what="no template")
    bed.wait_for(lambda: not aliquot.files(node), what="no file of a claim on the node")
    assert aliquot.used_bytes(node) == 0, aliquot.books(node)
    say("No claim, no template, no share directory, no CDI file; the GPU is empty.")


def look_around(bed: Cluster) -> None:
    say(f"""
Look around (one pod, team-a/playground, is running):

  export KUBECONFIG={bed.kubeconfig} PATH={bed.binaries.kubernetes}:$PATH
  kubectl get resourceslices -o yaml                    # what the agent publishes
  kubectl get resourceclaims -n team-a -o yaml          # what the pod got, and what it uses
  kubectl logs -n team-a playground                     # what the program saw
  kubectl exec -n {NAMESPACE} daemonset/aliquot-sim -- /opt/aliquot-sim/aliquot-sim books
  kubectl apply -f my-pod.yaml -n team-a                # image {CLIENT}

It was installed with: helm install aliquot {CHART.relative_to(BUILD.parent)} --set simulatedGpu.enabled=true
Remove it all with: make demo-down""")


def chapter(title: str) -> None:
    say(f"\n--- {title} ---")


def show(bed: Cluster, *kubectl: str) -> None:
    say(f"$ kubectl {shlex.join(kubectl)}")
    say(bed.kubectl(*kubectl).rstrip())


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
