# SPDX-License-Identifier: Apache-2.0
"""The demo: a real cluster, a simulated GPU, and pods that share it, told as a story.

It checks what it tells: where something else happens it says so and ends with status 1.
"""

import shlex
import sys
import time
from pathlib import Path
from typing import Final

from aliquot_api import names
from tests.cluster.binaries import helm
from tests.cluster.cluster import Cluster
from tests.cluster.collect import collect
from tests.cluster.system import TestbedError, run
from tests.system.images import BUILD
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
    say("Its daemons start; that takes some 15 seconds.")
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
    say("The node gets the images, and Helm installs the chart; that takes half a minute.")
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
    resize_live(aliquot, team, node)
    catch_a_cheat(team)
    fail_and_come_back(aliquot, team, node)
    leave_others_alone(aliquot, team)
    clean_up(aliquot, team, node)
    team.create(gpu_pod("playground", vgpu=1, gpumem=LIMIT_MIB))
    team.wait_said("playground", "going on")
    wait_reported(team, "playground")
    chapter("What is there now: kubectl aliquot top")
    say(top(bed))


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
    wait_reported(team, "train")
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


def wait_reported(team: Tenant, pod: str) -> None:
    """Until a pod's claim shows that it gave memory back."""

    def is_it() -> bool:
        data = (team.reported(pod) or {"data": {"used": 0, "peak": 0}})["data"]
        return bool(data["used"] < data["peak"])

    team.bed.wait_for(is_it, what="the claim to show limit and use")


def resize_live(aliquot: Installation, team: Tenant, node: str) -> None:
    bed = team.bed
    chapter("A running pod's limit moves, without a restart")
    say("By an annotation, down to what it holds and up to what the GPU has left:")
    for limit in ("7000Mi", f"{LIMIT_MIB}Mi"):
        change = ("annotate", "--overwrite", "pod", "third", f"{names.ANNOTATION_MEMORY_LIMIT}={limit}")
        show(bed, *change, "-n", team.namespace)
        wanted = str(int(limit.removesuffix("Mi")) * MIB)

        def is_moved(wanted: str = wanted) -> bool:
            return str((team.reported("third") or {"data": {}})["data"].get("limit")) == wanted

        bed.wait_for(is_moved, what=f"the limit to be {limit}", timeout_s=60)
        say(f"third: its claim shows a limit of {limit}")
    [container] = team.pod("third")["status"]["containerStatuses"]
    assert container["restartCount"] == 0
    assert aliquot.used_bytes(node) <= 2 * LIMIT_MIB * MIB


def catch_a_cheat(team: Tenant) -> None:
    chapter("A program that goes around the library is caught from outside")
    say("cheat asks for 1000 MiB and takes 3000: it is a static program, which no library can reach.")
    pod = gpu_pod("cheat", vgpu=1, gpumem=1000, command=("hog-static", "3000"))
    pod["spec"]["restartPolicy"] = "Never"
    team.create(pod)
    [told, *_] = team.bed.wait_for(
        lambda: team.told("cheat", "GPUMemoryOverQuota"), what="the agent to catch it", timeout_s=60
    )
    say(f"The agent, which asks the driver who holds what, says within seconds: {told}")
    team.bed.wait_for_pod("cheat", team.namespace, phase="Failed")
    say("cheat: ended (overQuota: kill is the default; warn and evict are the others). Its neighbours go on:")
    show(team.bed, "get", "pods", "-n", team.namespace)
    for neighbour in ("infer", "third"):
        [container] = team.pod(neighbour)["status"]["containerStatuses"]
        assert container["restartCount"] == 0
    team.delete("cheat")


def fail_and_come_back(aliquot: Installation, team: Tenant, node: str) -> None:
    bed = team.bed
    chapter("The GPU fails (XID 79), takes no new pods, and comes back")

    def is_tainted() -> bool:
        [*devices] = aliquot.devices(node)
        return not devices or bool(devices[0].get("taints"))  # Kubernetes 1.35 drops taints: it is left out

    aliquot.inject(node, "xid", "--gpu", "0", "--code", "79")
    bed.wait_for(is_tainted, what="the GPU to be kept from new pods")
    team.create(gpu_pod("later", vgpu=1, gpumem=1000))
    say("Its device is tainted; pods that run go on, a new one waits:")
    bed.wait_for(
        lambda: [
            each for each in team.pod("later")["status"].get("conditions", []) if each["status"] == "False"
        ],
        what="the new pod to wait",
    )
    show(bed, "get", "pods", "-n", team.namespace)
    aliquot.inject(node, "recover", "--gpu", "0")
    team.wait_said("later", "device", timeout_s=90)
    say("It was reset: after some quiet seconds it takes pods again, and the new one runs.")
    show(bed, "get", "pods", "-n", team.namespace)
    team.delete("later")


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


def top(bed: Cluster) -> str:
    """What `aliquot top` prints."""
    program = Path(sys.executable).with_name("aliquot")
    return run(program, "top", env=bed.environment()).rstrip()


def look_around(bed: Cluster) -> None:
    programs = ":".join(map(str, (Path(sys.executable).parent, bed.binaries.kubernetes, helm().parent)))
    say(f"""
Look around (one pod, team-a/playground, is running):

  export KUBECONFIG={bed.kubeconfig} PATH={programs}:$PATH
  kubectl aliquot top --watch                           # GPUs and shares, again and again
  kubectl get resourceslices -o yaml                    # what the agent publishes
  kubectl get resourceclaims -n team-a -o yaml          # what the pod got, and what it uses
  kubectl logs -n team-a playground                     # what the program saw
  kubectl exec -n {NAMESPACE} daemonset/aliquot-sim -- /opt/aliquot-sim/aliquot-sim books
  kubectl create -n team-a -f docs/examples/first-pod.yaml

It was installed as docs/install.md says, with shorter intervals:
  helm install aliquot {CHART.relative_to(BUILD.parent)} --namespace {NAMESPACE} --create-namespace \\
    --set simulatedGpu.enabled=true --set images.tag=dev
docs/first-pod.md goes on from here. Remove it all with: make demo-down""")


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
