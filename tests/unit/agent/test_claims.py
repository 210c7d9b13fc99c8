# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aliquot_agent import cdi, fit, sharedir
from aliquot_agent.checkpoint import Checkpoints, PreparedClaim, PreparedShare
from aliquot_agent.claims import ClaimRef
from aliquot_agent.devices import device_name
from aliquot_agent.errors import ApiError, Refused
from aliquot_agent.hardware import Cause, LeftOut
from aliquot_agent.library import Library
from aliquot_agent.nodepolicy import GpuPolicy, NodePolicy
from aliquot_api.config import API_VERSION, KIND
from aliquot_api.names import DRIVER
from tests.unit.agent.kit import ESTIMATE, GIB, NODE, FakeServer, Node, make_claim, make_gpu, result

MIB = 1024**2


def opaque(source: str, sharing: str, *, requests: list[str] | None = None, **extra: str) -> dict[str, Any]:
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "sharing": sharing, **extra}
    return {
        "source": source,
        "requests": requests or [],
        "opaque": {"driver": DRIVER, "parameters": parameters},
    }


def spec_of(node: Node, uid: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(cdi.spec_path(node.cdi_dir, uid).read_text())
    return loaded


def test_a_share_gets_quota_ledger_and_cdi_devices(node: Node) -> None:
    gpu = node.gpus.gpus[0]
    share = result(gpu, memory="8000Mi", cores="30", request="main/large")
    ref = node.server.add(make_claim(share))

    (device,) = node.claims().prepare(ref)

    assert device.request == "main"
    assert device.share == share["shareID"]
    assert device.cdi_ids == (
        f"sim.aliquot.dev/gpu={gpu.uuid}",
        f"gpu.aliquot.dev/share={ref.uid}-{share['shareID']}",
    )
    directory = node.claims_dir / ref.uid / share["shareID"]
    with sharedir.ShareFiles(path=directory) as opened:
        quota = opened.quota()
        assert opened.ledger().slots == ()
    assert quota.gpu_uuid == gpu.uuid
    assert quota.memory_limit_bytes == 8000 * MIB
    assert quota.cores_millipercent == 30_000
    assert quota.context_estimate_bytes == ESTIMATE
    files = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert files == {"quota": 0o644, "ledger": 0o666}
    folders = [path.stat().st_mode & 0o777 for path in (node.claims_dir, directory.parent, directory)]
    assert folders == [0o700, 0o700, 0o700]


def test_the_cdi_spec_mounts_share_library_and_preload(node: Node) -> None:
    share = result(node.gpus.gpus[0])
    ref = node.server.add(make_claim(share))
    node.claims().prepare(ref)

    spec = spec_of(node, ref.uid)
    name, host = share["shareID"], node.claims_dir / ref.uid / share["shareID"]
    mounts = spec["devices"][0]["containerEdits"]["mounts"]
    assert "containerEdits" not in spec  # they would reach containers that have another share of the claim
    root = {mount["containerPath"]: mount for mount in mounts}.pop("/run/aliquot")
    assert (root["type"], "ro" in root["options"]) == ("tmpfs", True)
    mounts.remove(root)
    assert all({"nosuid", "nodev", "bind"} <= set(mount["options"]) for mount in mounts)
    by_target = {mount["containerPath"]: (mount["hostPath"], mount["options"][0]) for mount in mounts}
    library = by_target.pop("/run/aliquot/lib/libaliquot.so")
    preload = by_target.pop("/etc/ld.so.preload")
    by_target.pop(
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/claim/main/gpu.aliquot.dev-metadata.json"
    )
    assert by_target == {
        f"/run/aliquot/shares/{name}/quota": (str(host / "quota"), "ro"),
        f"/run/aliquot/shares/{name}/ledger": (str(host / "ledger"), "rw"),
    }
    assert (library[1], preload[1]) == ("ro", "ro")
    assert Path(library[0]).read_bytes() == node.library.read_bytes()
    assert Path(preload[0]).read_text() == "/run/aliquot/lib/libaliquot.so\n"


def test_two_claims_bring_the_same_mount_point(node: Node) -> None:
    claims = node.claims()
    roots = []
    for name in ("one", "two"):
        ref = node.server.add(make_claim(result(node.gpus.gpus[0], memory="1Gi"), name=name))
        claims.prepare(ref)
        roots.append(spec_of(node, ref.uid)["devices"][0]["containerEdits"]["mounts"][0])
    assert roots[0] == roots[1]
    assert roots[0]["containerPath"] == "/run/aliquot"


@pytest.mark.parametrize("offset", [0, 64])
def test_a_quota_that_was_changed_is_put_right_by_the_next_call(node: Node, offset: int) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    node.claims().prepare(ref)
    quota = next(node.claims_dir.rglob("quota"))
    inode = quota.stat().st_ino
    with quota.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 8)

    assert node.claims().prepare(ref)
    assert quota.stat().st_ino == inode
    with sharedir.ShareFiles(path=quota.parent) as opened:
        assert opened.quota().memory_limit_bytes == 8000 * MIB


def prepared_by_an_agent_before(node: Node) -> ClaimRef:
    """A claim whose share directories are where agents before had them."""
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    node.claims().prepare(ref)
    node.old_claims_dir.mkdir(parents=True)
    (node.claims_dir / ref.uid).rename(node.old_claims_dir / ref.uid)
    checkpoints = Checkpoints(directory=node.checkpoint_dir)
    (entry,) = checkpoints.all()
    checkpoints.save(dataclasses.replace(entry, directory=""))
    return ref


def test_a_share_of_an_agent_before_stays_where_its_container_has_it(node: Node) -> None:
    ref = prepared_by_an_agent_before(node)
    quota = next(node.old_claims_dir.rglob("quota"))
    inode = quota.stat().st_ino
    claims = node.claims()
    (device,) = claims.prepare(ref)
    node.reconcile(claims)
    (entry,) = claims.prepared()
    assert (
        claims.share_dir(entry, entry.shares[0])
        == quota.parent
        == node.old_claims_dir / ref.uid / device.share
    )
    assert quota.stat().st_ino == inode
    assert str(quota) in cdi.spec_path(node.cdi_dir, ref.uid).read_text()
    assert not list(node.claims_dir.iterdir())
    claims.unprepare(ref.uid)
    assert node.leftovers() == []


def test_after_a_reboot_a_share_of_an_agent_before_is_made_where_they_are_now(node: Node) -> None:
    ref = prepared_by_an_agent_before(node)
    node.boot_id = "boot-2"
    node.claims().prepare(ref)
    assert [path.name for path in node.claims_dir.iterdir()] == [ref.uid]
    assert not list(node.old_claims_dir.iterdir())
    assert str(next(node.claims_dir.rglob("quota"))) in cdi.spec_path(node.cdi_dir, ref.uid).read_text()


def test_a_second_call_answers_the_same_and_keeps_the_files(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    first = node.claims().prepare(ref)
    ledger = next(node.claims_dir.rglob("ledger"))
    inode = ledger.stat().st_ino

    assert node.claims().prepare(ref) == first
    assert ledger.stat().st_ino == inode


def test_a_prepared_claim_is_answered_while_the_server_is_away(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    first = node.claims().prepare(ref)
    node.server.failures = [ApiError(status=0, message="connection refused")]

    assert node.claims().prepare(ref) == first


def test_a_short_outage_is_waited_out_inside_the_call(node: Node) -> None:
    node.patience_s = 5
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    node.server.failures = [ApiError(status=503, message="busy"), ApiError(status=0, message="reset")]

    assert node.claims().prepare(ref)
    assert node.server.reads == 3


def test_after_a_reboot_everything_is_made_anew(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    first = node.claims().prepare(ref)
    quota = next(node.claims_dir.rglob("quota"))
    quota.write_bytes(b"")  # never synced
    cdi.spec_path(node.cdi_dir, ref.uid).unlink()  # /var/run is a tmpfs

    node.boot_id = "boot-2"
    assert node.claims().prepare(ref) == first
    with sharedir.ShareFiles(path=quota.parent) as opened:
        assert opened.quota().memory_limit_bytes == 8000 * MIB
    assert spec_of(node, ref.uid)["devices"]


def test_a_damaged_quota_is_not_replaced_under_running_containers(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    claims = node.claims()
    claims.prepare(ref)
    next(node.claims_dir.rglob("quota")).write_bytes(b"")

    with pytest.raises(ValueError, match="quota"):
        claims.prepare(ref)


def test_unprepare_leaves_nothing_and_needs_no_claim(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0]), result(node.gpus.gpus[1], request="side")))
    claims = node.claims()
    claims.prepare(ref)
    node.server.claims.clear()

    claims.unprepare(ref.uid)
    claims.unprepare(ref.uid)
    claims.unprepare("never-seen")
    assert node.leftovers() == []


def test_the_whole_gpu_goes_without_shim(node: Node) -> None:
    gpu = node.gpus.gpus[0]
    ref = node.server.add(make_claim(result(gpu, memory=None, cores="100")))

    (device,) = node.claims().prepare(ref)

    own = f"gpu.aliquot.dev/share={ref.uid}-{device.share}"
    assert device.cdi_ids == (f"sim.aliquot.dev/gpu={gpu.uuid}", own)
    [mount] = spec_of(node, ref.uid)["devices"][0]["containerEdits"]["mounts"]
    assert mount["containerPath"].endswith("-metadata.json")
    assert not list(node.claims_dir.rglob("quota"))


@pytest.mark.parametrize(
    ("memory", "cores"),
    [pytest.param(None, "0", id="no cores"), pytest.param("8000Mi", "100", id="less memory")],
)
def test_less_than_everything_keeps_the_shim(node: Node, memory: str | None, cores: str) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0], memory=memory, cores=cores)))
    node.claims().prepare(ref)
    assert list(node.claims_dir.rglob("quota"))


def test_several_shares_of_a_claim_each_get_their_own(node: Node) -> None:
    one, two = node.gpus.gpus
    shares = [result(one, request="a"), result(one, request="b"), result(two, request="b")]
    ref = node.server.add(make_claim(*shares, {**shares[0], "driver": "other.example.com"}))

    devices = node.claims().prepare(ref)

    assert [(device.request, device.share) for device in devices] == [
        (share["request"], share["shareID"]) for share in shares
    ]
    assert len({device.cdi_ids[1] for device in devices}) == 3
    assert len(spec_of(node, ref.uid)["devices"]) == 3


def test_a_claim_as_kubernetes_1_35_allocates_it_beside_another_driver_is_prepared(node: Node) -> None:
    ours = {**result(node.gpus.gpus[0], request="gpu/large"), "bindingConditions": None, "tolerations": [{}]}
    theirs = {
        "request": "nic",
        "driver": "nic.example.com",
        "pool": "another-pool",
        "device": "eth0",
        "adminAccess": False,
    }
    odd = {
        "source": "FromClass",
        "requests": ["nic"],
        "opaque": {"driver": "nic.example.com", "parameters": 7},
    }
    claim = make_claim(theirs, ours, config=[odd, opaque("FromClaim", "shim", requests=["gpu"])])
    claim["spec"] = {"devices": {"requests": [{"name": "gpu", "firstAvailable": [{"name": "large"}]}]}}
    claim["status"]["allocation"] |= {
        "allocationTimestamp": "2026-11-30T00:00:00Z",
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": []}]},
    }
    claim["status"]["devices"] = [{"driver": "nic.example.com", "pool": "another-pool", "device": "eth0"}]

    (device,) = node.claims().prepare(node.server.add(claim))

    assert (device.request, device.share) == ("gpu", ours["shareID"])
    [spec] = spec_of(node, claim["metadata"]["uid"])["devices"]
    assert spec["name"].endswith(ours["shareID"])


def test_a_claim_allocated_anew_is_prepared_anew(node: Node) -> None:
    claim = make_claim(result(node.gpus.gpus[0]))
    ref = node.server.add(claim)
    claims = node.claims()
    claims.prepare(ref)
    again = result(node.gpus.gpus[1], memory="1Gi")
    claim["status"]["allocation"]["devices"]["results"] = [again]

    (device,) = claims.prepare(ref)

    assert device.share == again["shareID"]
    assert [path.parent.name for path in node.claims_dir.rglob("quota")] == [again["shareID"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"pool": "node-2"}, "is of pool node-2, this node's pool is node-1", id="other node"),
        pytest.param({"device": "gpu-gone"}, "not on this node any more", id="vanished GPU"),
        pytest.param(
            {"consumedCapacity": {}}, r"no shareID or no consumedCapacity\[memory\]", id="no capacity"
        ),
        pytest.param({"shareID": None}, "no shareID", id="no share"),
        pytest.param({"shareID": "../../etc"}, "is no UUID", id="share that is a path"),
        pytest.param({"adminAccess": True}, "adminAccess", id="admin access"),
        pytest.param(
            {"consumedCapacity": {"memory": "lots"}}, "want a Kubernetes quantity", id="bad quantity"
        ),
    ],
)
def test_results_that_make_no_sense_here_are_refused(
    node: Node, change: dict[str, Any], message: str
) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0], **change)))
    with pytest.raises(Refused, match=message):
        node.claims().prepare(ref)
    assert node.leftovers() == []


def test_one_request_with_two_shares_of_a_gpu_is_refused(node: Node) -> None:
    gpu = node.gpus.gpus[0]
    ref = node.server.add(make_claim(result(gpu), result(gpu)))
    with pytest.raises(Refused, match=r"was given device .* twice"):
        node.claims().prepare(ref)


def test_a_claim_made_anew_under_the_same_name_is_refused(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    stale = ClaimRef(namespace=ref.namespace, name=ref.name, uid="another")
    with pytest.raises(Refused, match="it was made anew"):
        node.claims().prepare(stale)


def test_an_unallocated_claim_is_refused(node: Node) -> None:
    claim = make_claim()
    del claim["status"]["allocation"]
    with pytest.raises(Refused, match="not allocated"):
        node.claims().prepare(node.server.add(claim))


def test_a_missing_claim_is_refused(node: Node) -> None:
    with pytest.raises(Refused, match="there is no claim team-a/gone"):
        node.claims().prepare(ClaimRef(namespace="team-a", name="gone", uid="x"))


def test_a_gpu_without_base_spec_is_refused_before_anything_is_written(node: Node) -> None:
    gpu = node.gpus.gpus[0]
    node.write_base_spec(without=gpu.uuid)
    ref = node.server.add(make_claim(result(gpu)))
    with pytest.raises(Refused, match="no CDI spec gives access"):
        node.claims().prepare(ref)
    assert node.leftovers() == []


def test_without_library_a_share_is_refused(node: Node) -> None:
    node.library.unlink()
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    with pytest.raises(Refused, match="no library"):
        node.claims().prepare(ref)
    assert node.leftovers() == []


def test_a_library_damaged_on_disk_is_healed_before_use(node: Node) -> None:
    claims = node.claims()
    claims.prepare(node.server.add(make_claim(result(node.gpus.gpus[0]), name="one")))
    (installed,) = (node.root / "state" / "lib").glob("*/libaliquot.so")
    installed.write_bytes(b"short")
    claims.prepare(node.server.add(make_claim(result(node.gpus.gpus[0]), name="two")))
    assert installed.read_bytes() == node.library.read_bytes()


def test_a_burst_looks_at_the_library_once(node: Node) -> None:
    burst = Library(source=node.library, state_dir=node.root / "state", moment_s=3600)
    folder = burst.ensure()
    installed = folder / "libaliquot.so"
    assert burst.ensure() == folder
    installed.write_bytes(b"short")
    assert burst.ensure() == folder
    assert installed.read_bytes() == b"short"
    assert node.libraries.ensure() == folder
    assert installed.read_bytes() == node.library.read_bytes()


def test_containers_keep_the_library_they_were_given(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    node.claims().prepare(ref)
    before = spec_of(node, ref.uid)
    node.library.write_bytes(b"\x7fELF newer library")
    node.claims().prepare(ref)
    assert spec_of(node, ref.uid) == before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param([opaque("FromClaim", "exclusive")], "asks for all of device", id="exclusive of a part"),
        pytest.param([opaque("FromClaim", "mine")], "want one of", id="unknown sharing"),
        pytest.param([opaque("FromClaim", "shim", apiVersion="v9")], "apiVersion", id="unknown version"),
        pytest.param(
            [opaque("FromClaim", "exclusive"), opaque("FromClass", "shim")],
            "asks for all",
            id="claim before class",
        ),
    ],
)
def test_configuration_that_cannot_be_met_is_refused(
    node: Node, config: list[dict[str, Any]], message: str
) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0]), config=config))
    with pytest.raises(Refused, match=message):
        node.claims().prepare(ref)


def test_configuration_of_other_requests_does_not_count(node: Node) -> None:
    config = [opaque("FromClaim", "exclusive", requests=["other"]), opaque("FromClass", "exclusive")]
    config.append(opaque("FromClaim", "shim", requests=["main"]))
    ref = node.server.add(make_claim(result(node.gpus.gpus[0]), config=config))
    assert node.claims().prepare(ref)


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        pytest.param(("16000Mi", "0"), ("16000Mi", "0"), "memory", id="memory"),
        pytest.param(("1Gi", "60"), ("1Gi", "41"), "cores", id="cores"),
    ],
)
def test_shares_that_do_not_fit_together_are_refused(
    node: Node, first: tuple[str, str], second: tuple[str, str], what: str
) -> None:
    gpu, claims = node.gpus.gpus[0], node.claims()
    for name, (memory, cores) in (("one", first), ("elsewhere", second)):
        target = gpu if name == "one" else node.gpus.gpus[1]
        claims.prepare(node.server.add(make_claim(result(target, memory=memory, cores=cores), name=name)))
    late = node.server.add(make_claim(result(gpu, memory=second[0], cores=second[1]), name="late"))

    with pytest.raises(Refused, match=f"of {what}; with this claim"):
        claims.prepare(late)
    assert not (node.claims_dir / late.uid).exists()


def test_more_shares_than_the_gpu_has_are_refused(node: Node) -> None:
    node.gpus.policy = NodePolicy(defaults=GpuPolicy(shares=2))
    claims = node.claims()
    for name in ("one", "two"):
        claims.prepare(node.server.add(make_claim(result(node.gpus.gpus[0], memory="1Gi"), name=name)))
    with pytest.raises(Refused, match="of shares"):
        claims.prepare(node.server.add(make_claim(result(node.gpus.gpus[0], memory="1Gi"), name="three")))


def test_racing_claims_never_overfill_a_gpu(node: Node) -> None:
    claims = node.claims()
    refs = [
        node.server.add(make_claim(result(node.gpus.gpus[0], memory="4Gi"), name=f"c{number}"))
        for number in range(12)
    ]
    outcomes: list[bool] = []

    def prepare(ref: ClaimRef) -> None:
        try:
            claims.prepare(ref)
            outcomes.append(True)
        except Refused:
            outcomes.append(False)

    threads = [threading.Thread(target=prepare, args=(ref,)) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == [False] * 6 + [True] * 6


def test_room_held_by_a_claim_that_is_gone_is_taken_back(node: Node) -> None:
    node.patience_s = 5
    claims = node.claims()
    old = node.server.add(make_claim(result(node.gpus.gpus[0], memory="20Gi"), name="old"))
    claims.prepare(old)
    del node.server.claims[old.namespace, old.name]
    new = node.server.add(make_claim(result(node.gpus.gpus[0], memory="20Gi"), name="new"))

    assert claims.prepare(new)
    assert [claim.uid for claim in claims.prepared()] == [new.uid]


def test_a_slow_server_is_not_asked_for_every_sharer_after_the_deadline(node: Node) -> None:
    claims = node.claims()
    gpu, source, pause = node.gpus.gpus[0], node.server, threading.Event()
    for number in range(8):
        claims.prepare(source.add(make_claim(result(gpu, memory="3Gi"), name=f"held-{number}")))
    new = source.add(make_claim(result(gpu, memory="20Gi"), name="new"))
    asked: list[str] = []

    class Slow(FakeServer):
        def get_claim(self, namespace: str, name: str) -> dict[str, Any]:
            asked.append(name)
            pause.wait(0.2)
            return source.get_claim(namespace, name)

    node.server, node.patience_s = Slow(), 0.5
    with pytest.raises(Refused, match="8 shares are prepared there already"):
        node.claims().prepare(new)
    assert asked[0] == "new"
    assert 1 <= len(asked[1:]) <= 3


def test_a_claim_that_is_gone_stays_while_its_processes_live(node: Node) -> None:
    claims = node.claims()
    shared = node.server.add(make_claim(result(node.gpus.gpus[0], memory="20Gi"), name="shared"))
    whole = node.server.add(make_claim(result(node.gpus.gpus[1], memory=None, cores="100"), name="whole"))
    claims.prepare(shared)
    claims.prepare(whole)
    node.server.claims.clear()
    node.gpus.busy_uuids.add(node.gpus.gpus[1].uuid)

    released = {claim.name: claims.release_if_gone(claim) for claim in claims.prepared()}
    assert released == {"shared": True, "whole": False}


def test_an_unreadable_checkpoint_is_set_aside_and_the_claim_prepared_again(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    first = node.claims().prepare(ref)
    checkpoint = node.checkpoint_dir / f"{ref.uid}.json"
    checkpoint.write_text(checkpoint.read_text().replace('"cores_percent": 0', '"cores_percent": 9'))

    claims = node.claims()
    assert claims.prepared() == ()
    assert checkpoint.with_name(f"{ref.uid}.json.corrupt").exists()
    assert claims.prepare(ref) == first


def test_memory_above_the_gpu_is_not_taken_for_a_share_of_it(node: Node) -> None:
    node.gpus.gpus[0] = make_gpu(0, memory_bytes=16 * GIB)
    ref = node.server.add(make_claim(result(node.gpus.gpus[0], memory="20Gi")))
    with pytest.raises(Refused, match="of memory"):
        node.claims().prepare(ref)


def test_what_a_whole_gpu_was_handed_out_with_is_known(node: Node) -> None:
    claims = node.claims()
    for gpu, cores in zip(node.gpus.gpus, ("100", "0"), strict=True):
        claims.prepare(node.server.add(make_claim(result(gpu, memory=None, cores=cores), name=gpu.uuid)))
    assert fit.held_whole(claims.prepared()) == {device_name(node.gpus.gpus[0].uuid): 24 * GIB}


def test_room_beside_a_whole_gpu_is_none() -> None:
    share = PreparedShare(
        share="s",
        request="r",
        pool=NODE,
        device="gpu",
        gpu_uuid="GPU",
        whole=True,
        memory_bytes=GIB,
        cores_percent=100,
        shares=1,
        context_estimate_bytes=0,
    )
    part = dataclasses.replace(share, whole=False, cores_percent=0)
    room = fit.Room(memory_bytes=4 * GIB, shares=16)
    for wanted, held in ((share, part), (part, share)):
        claim = PreparedClaim("u", "n", "c", "boot", "now", "", (held,))
        problem = fit.misfit("gpu", room=room, wanted=[wanted], others=[claim])
        assert problem is not None
        assert "taken whole only alone" in problem
    assert fit.misfit("gpu", room=room, wanted=[share], others=[]) is None


def test_a_damaged_preload_file_of_an_older_library_is_refused(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    node.claims().prepare(ref)
    node.library.write_bytes(b"\x7fELF newer library")
    (preload,) = (node.root / "state" / "lib").glob("*/ld.so.preload")
    preload.write_text("")
    with pytest.raises(Refused, match="is damaged or gone"):
        node.claims().prepare(ref)


def test_a_refusal_is_told_where_people_look(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0], memory="99999Gi")))
    with pytest.raises(Refused):
        node.claims().prepare(ref)
    [message] = node.refusals
    assert "of memory" in message


def test_a_gpu_that_somebody_else_hands_out_takes_no_new_claim_and_keeps_old_ones(node: Node) -> None:
    gpu, claims = node.gpus.gpus[0], node.claims()
    old, new = (node.server.add(make_claim(result(gpu, memory="1Gi"), name=name)) for name in ("old", "new"))
    devices = claims.prepare(old)
    node.gpus.left_out[gpu.uuid] = LeftOut(0, gpu.uuid, Cause.OWNED, "a device plugin hands it out")
    assert claims.prepare(old) == devices
    with pytest.raises(Refused, match="a device plugin hands it out"):
        claims.prepare(new)


def test_gpu_access_that_comes_late_is_waited_for(node: Node) -> None:
    node.patience_s = 20
    node.write_base_spec(without=node.gpus.gpus[0].uuid)
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    toolkit = threading.Timer(0.5, node.write_base_spec)
    toolkit.start()
    assert node.claims().prepare(ref)
    toolkit.join()
    assert node.refusals == []


def test_a_reserve_that_was_raised_meanwhile_strands_no_allocated_claim(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0], memory=None)))
    node.gpus.policy = NodePolicy(defaults=GpuPolicy(reserve_bytes=4 * MIB))
    assert node.claims().prepare(ref)


def test_each_request_tells_its_devices_in_a_file(node: Node) -> None:
    one, two = node.gpus.gpus
    shares = [result(one, request="a", memory="1Gi"), result(two, request="a"), result(two, request="b/x")]
    claim = make_claim(*shares)
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "aliquot"}
    ref = node.server.add(claim)
    node.claims().prepare(ref)

    stream = (node.claims_dir / ref.uid / "a.json").read_text().splitlines()
    documents = [json.loads(line) for line in stream]
    versions = [document["apiVersion"] for document in documents]
    assert versions == ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"]
    for document in documents:
        assert document["kind"] == "DeviceMetadata"
        assert document["metadata"]["uid"] == ref.uid
        assert document["podClaimName"] == "aliquot"
        [request] = document["requests"]
        assert request["name"] == "a"
        assert [device["name"] for device in request["devices"]] == [gpu.uuid.lower() for gpu in (one, two)]
        attributes = request["devices"][0]["attributes"]
        assert attributes["uuid"] == {"string": one.uuid}
        assert attributes["consumedMemoryBytes"] == {"int": 1024 * MIB}
        assert attributes["shareID"] == {"string": shares[0]["shareID"]}
    targets = {
        mount["containerPath"]: mount["hostPath"]
        for device in spec_of(node, ref.uid)["devices"]
        for mount in device["containerEdits"]["mounts"]
        if "dra-device-attributes" in mount["containerPath"]
    }
    inside = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/aliquot"
    assert targets == {
        f"{inside}/{name}/gpu.aliquot.dev-metadata.json": str(node.claims_dir / ref.uid / f"{name}.json")
        for name in ("a", "b")
    }


@pytest.mark.parametrize("name", ["../../etc", "a/../../b", "A", "", "x" * 64])
def test_a_pods_claim_name_that_is_no_name_is_not_used_in_a_path(node: Node, name: str) -> None:
    claim = make_claim(result(node.gpus.gpus[0]))
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": name}
    ref = node.server.add(claim)
    node.claims().prepare(ref)
    assert "resourceclaimtemplates" not in json.dumps(spec_of(node, ref.uid))


def test_two_agents_of_a_rolling_update_never_overfill_a_gpu(node: Node) -> None:
    refs = [
        node.server.add(make_claim(result(node.gpus.gpus[0], memory="2Gi"), name=f"c{number}"))
        for number in range(24)
    ]
    agents = [node.claims(), node.claims()]
    with ThreadPoolExecutor(max_workers=8) as pool:
        jobs = [pool.submit(agents[number % 2].prepare, ref) for number, ref in enumerate(refs)]
        refused = sum(job.exception() is not None for job in jobs)
    assert refused == 12
    assert len(agents[0].prepared()) == len(agents[1].prepared()) == 12


def test_what_one_agent_prepared_the_other_answers_and_undoes(node: Node) -> None:
    old, new = node.claims(), node.claims()
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    assert old.prepare(ref) == new.prepare(ref)
    new.unprepare(ref.uid)
    assert (old.prepared(), node.leftovers()) == ((), [])
    old.unprepare(ref.uid)


def test_prepares_that_wait_let_others_pass(node: Node) -> None:
    node.patience_s = 20
    one, two = node.gpus.gpus
    node.write_base_spec(without=one.uuid)
    claims = node.claims()
    waiting = [
        node.server.add(make_claim(result(one, memory="1Gi"), name=f"waiting-{number}"))
        for number in range(6)
    ]
    quick = node.server.add(make_claim(result(two, memory="1Gi"), name="quick"))
    with ThreadPoolExecutor(max_workers=len(waiting)) as pool:
        jobs = [pool.submit(claims.prepare, ref) for ref in waiting]
        assert claims.prepare(quick)
        assert not any(job.done() for job in jobs)
        node.write_base_spec()
        assert all(job.result(timeout=30) for job in jobs)


def test_an_agent_that_takes_over_removes_nothing_that_is_being_made(node: Node) -> None:
    takes_over = True

    def take_over(_: str) -> None:
        if takes_over:
            node.claims()  # the next agent, which clears up as it starts to lead

    claims = node.claims(step=take_over)
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    others = node.cdi_dir / "spec.4711.tmp"  # as the CDI library of another driver makes them
    others.touch()
    (device,) = claims.prepare(ref)
    with sharedir.ShareFiles(path=node.claims_dir / ref.uid / device.share) as opened:
        assert opened.quota().memory_limit_bytes == 8000 * 1024**2
    takes_over = False
    claims.unprepare(ref.uid)
    assert others.exists()
    others.unlink()
    assert node.leftovers() == []


def test_only_the_gpus_of_a_claim_are_described(node: Node) -> None:
    node.gpus.gpus = [make_gpu(number) for number in range(8)]
    node.write_base_spec()
    gpu = node.gpus.gpus[3]
    node.claims().prepare(node.server.add(make_claim(result(gpu))))
    assert node.described == [device_name(gpu.uuid)]


def reserved(claim: dict[str, Any]) -> dict[str, Any]:
    """A claim that two pods hold."""
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("plain", "debug")
    ]
    return claim


def test_a_share_is_not_given_to_a_pod_that_could_lift_its_limit(node: Node) -> None:
    node.server.privileges["team-a", "debug", "uid-debug"] = "spec.hostPID: no"
    ref = node.server.add(reserved(make_claim(result(node.gpus.gpus[0]))))
    with pytest.raises(Refused, match=r"pod debug could lift the limit of its share: spec\.hostPID"):
        node.claims().prepare(ref)
    assert node.leftovers() == []
    assert "pod debug could lift the limit" in node.refusals[0]

    whole = reserved(make_claim(result(node.gpus.gpus[1], memory=None, cores="100"), name="whole"))
    assert node.claims().prepare(node.server.add(whole))


def test_what_runs_already_is_prepared_again_whatever_its_pod_is(node: Node) -> None:
    ref = node.server.add(reserved(make_claim(result(node.gpus.gpus[0]))))
    devices = node.claims().prepare(ref)
    node.server.privileges["team-a", "debug", "uid-debug"] = "spec.hostPID: no"
    assert node.claims().prepare(ref) == devices


def test_a_pod_that_cannot_be_read_for_a_moment_is_read_again(node: Node) -> None:
    node.patience_s = 5
    node.server.pod_failures = [ApiError(status=0, message="no answer")]
    ref = node.server.add(reserved(make_claim(result(node.gpus.gpus[0]))))
    assert node.claims().prepare(ref)
    node.server.pod_failures = [ApiError(status=403, message="forbidden")]
    other = node.server.add(reserved(make_claim(result(node.gpus.gpus[0]), name="other")))
    with pytest.raises(Refused, match="pod team-a/plain cannot be read"):
        node.claims().prepare(other)
