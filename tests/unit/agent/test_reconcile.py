# SPDX-License-Identifier: Apache-2.0
import os
import uuid

from aliquot_agent import cdi, sharedir
from aliquot_agent.claims import Claims
from aliquot_agent.errors import ApiError
from aliquot_api.config import API_VERSION, KIND
from aliquot_api.names import DRIVER
from tests.unit.agent.kit import Node, make_claim, result
from tests.unit.agent.tenant import Tenant


def reconcile(node: Node, claims: Claims) -> None:
    node.reconcile(claims)


def test_a_lost_cdi_spec_is_put_back(node: Node) -> None:
    claims = node.claims()
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    claims.prepare(ref)
    path = cdi.spec_path(node.cdi_dir, ref.uid)
    before = path.read_bytes()
    path.unlink()
    reconcile(node, claims)
    assert path.read_bytes() == before


def test_after_a_reboot_prepared_claims_are_put_back_unasked(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    node.claims().prepare(ref)
    next(node.claims_dir.rglob("quota")).write_bytes(b"")  # never synced
    cdi.spec_path(node.cdi_dir, ref.uid).unlink()  # /var/run is a tmpfs

    node.boot_id = "boot-2"
    claims = node.claims()
    reconcile(node, claims)
    assert cdi.claims_with_spec(node.cdi_dir) == {ref.uid}
    assert [claim.boot_id for claim in claims.prepared()] == ["boot-2"]
    sharedir.ShareFiles(path=next(node.claims_dir.rglob("quota")).parent).close()


def test_files_of_nobody_are_removed(node: Node) -> None:
    claims = node.claims()
    forgotten = str(uuid.uuid4())
    (node.claims_dir / forgotten / "share").mkdir(parents=True)
    (node.old_claims_dir / str(uuid.uuid4()) / "share").mkdir(parents=True)
    cdi.spec_path(node.cdi_dir, forgotten).write_text("{}")
    (node.cdi_dir / "vendor.json").write_text("{}")
    reconcile(node, claims)
    assert node.leftovers() == ["cdi/vendor.json"]


def test_a_claim_made_anew_under_its_name_releases_the_old_one(node: Node) -> None:
    claims = node.claims()
    claims.prepare(node.server.add(make_claim(result(node.gpus.gpus[0]))))
    node.server.add(make_claim(result(node.gpus.gpus[0])))
    reconcile(node, claims)
    assert node.leftovers() == []


def test_a_claim_in_use_stays_until_its_process_ends(node: Node) -> None:
    claims = node.claims()
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    (device,) = claims.prepare(ref)
    tenant = Tenant(node.claims_dir / ref.uid / device.share)
    node.server.claims.clear()
    reconcile(node, claims)
    assert [claim.uid for claim in claims.prepared()] == [ref.uid]
    tenant.die()
    reconcile(node, claims)
    assert node.leftovers() == []


def test_nothing_is_released_while_the_server_is_away(node: Node) -> None:
    claims = node.claims()
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    claims.prepare(ref)
    node.server.claims.clear()
    node.server.failures = [ApiError(status=0, message="no route")]
    reconcile(node, claims)
    assert [claim.uid for claim in claims.prepared()] == [ref.uid]


def test_one_damaged_claim_does_not_stop_the_others(node: Node) -> None:
    claims = node.claims()
    refs = [
        node.server.add(make_claim(result(node.gpus.gpus[0], memory="1Gi"), name=name)) for name in ("a", "b")
    ]
    for ref in refs:
        claims.prepare(ref)
        cdi.spec_path(node.cdi_dir, ref.uid).unlink()
    for quota in (node.claims_dir / refs[0].uid).rglob("quota"):
        quota.write_bytes(b"")
    reconcile(node, claims)
    assert cdi.claims_with_spec(node.cdi_dir) == {refs[1].uid}


def test_a_claim_that_is_gone_goes_with_its_damaged_quota(node: Node) -> None:
    claims = node.claims()
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    claims.prepare(ref)
    next(node.claims_dir.rglob("quota")).write_bytes(b"")
    node.server.claims.clear()
    reconcile(node, claims)
    assert node.leftovers() == []


def test_a_directory_that_is_no_claims_is_left_alone(node: Node) -> None:
    claims = node.claims()
    (node.claims_dir / "lost+found" / "x").mkdir(parents=True)
    reconcile(node, claims)
    assert (node.claims_dir / "lost+found" / "x").is_dir()


def test_files_behind_an_unreadable_checkpoint_stay_while_a_process_uses_them(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    (device,) = node.claims().prepare(ref)
    tenant = Tenant(node.claims_dir / ref.uid / device.share)
    (node.checkpoint_dir / f"{ref.uid}.json").write_text("{")
    claims = node.claims()
    reconcile(node, claims)
    assert claims.prepared() == ()
    assert (node.claims_dir / ref.uid / device.share / "quota").exists()
    assert cdi.claims_with_spec(node.cdi_dir) == {ref.uid}
    tenant.die()
    reconcile(node, claims)
    assert not (node.claims_dir / ref.uid).exists()
    assert cdi.claims_with_spec(node.cdi_dir) == set()


def test_the_next_prepare_resolves_an_unreadable_checkpoint(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    claims = node.claims()
    before = claims.prepare(ref)
    (node.checkpoint_dir / f"{ref.uid}.json").write_text("{")
    assert claims.prepare(ref) == before
    reconcile(node, claims)
    assert [claim.uid for claim in claims.prepared()] == [ref.uid]


def test_a_claim_prepared_meanwhile_is_no_orphan(node: Node) -> None:
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    claims = node.claims()
    claims.prepare(ref)
    assert not claims.remove_orphan(ref.uid)
    assert cdi.claims_with_spec(node.cdi_dir) == {ref.uid}


def test_a_claim_that_this_version_cannot_read_is_not_gone(node: Node) -> None:
    claim = make_claim(result(node.gpus.gpus[0]))
    ref = node.server.add(claim)
    claims = node.claims()
    claims.prepare(ref)
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "sharing": "of-tomorrow"}
    config = {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": parameters}}
    claim["status"]["allocation"]["devices"]["config"] = [config]
    reconcile(node, claims)
    assert [each.uid for each in claims.prepared()] == [ref.uid]


def test_a_claim_that_lost_its_allocation_is_gone(node: Node) -> None:
    claim = make_claim(result(node.gpus.gpus[0]))
    claims = node.claims()
    claims.prepare(node.server.add(claim))
    del claim["status"]["allocation"]
    reconcile(node, claims)
    assert node.leftovers() == []


def test_libraries_that_nobody_uses_go_after_a_while(node: Node) -> None:
    claims = node.claims()
    ref = node.server.add(make_claim(result(node.gpus.gpus[0], memory="1Gi")))
    claims.prepare(ref)
    [used] = [claim.library for claim in claims.prepared()]
    folders = node.root / "state" / "lib"
    node.library.write_bytes(b"\x7fELF next version")
    node.claims().prepare(node.server.add(make_claim(result(node.gpus.gpus[0], memory="1Gi"), name="next")))
    for name, age_s in (("old", 7200), ("young", 60)):
        (folders / name).mkdir()
        os.utime(folders / name, (1e9, os.stat(folders).st_mtime - age_s))
    os.utime(used, (1e9, 1e9))
    reconcile(node, claims)
    assert not (folders / "old").exists()
    assert (folders / "young").exists()
    assert os.path.isdir(used)
    claims.unprepare(ref.uid)
    os.utime(used, (1e9, 1e9))
    reconcile(node, claims)
    assert not os.path.exists(used)


def test_a_checkpoint_that_was_set_aside_goes_with_its_claim(node: Node) -> None:
    claims = node.claims()
    ref = node.server.add(make_claim(result(node.gpus.gpus[0])))
    claims.prepare(ref)
    path = node.checkpoint_dir / f"{ref.uid}.json"
    path.write_text("{")
    assert claims.prepared() == ()
    tenant = Tenant(next(node.claims_dir.rglob("quota")).parent)
    reconcile(node, claims)
    assert next(node.claims_dir.rglob("quota"))  # its pod may run
    tenant.die()
    reconcile(node, claims)
    assert node.leftovers() == []


def test_a_read_only_disk_is_survived(node: Node) -> None:
    claims = node.claims()
    node.claims_dir.rename(node.root / "away")
    reconcile(node, claims)
