# SPDX-License-Identifier: Apache-2.0
from aliquot_agent.attribution import Owners, Process, attribute
from aliquot_agent.pods import Pod, digest
from aliquot_agent.processes import Place
from tests.unit.agent.shares import make_prepared, make_share
from tests.unit.agent.test_pods import ID, make_pod

MAIN, SIDE = make_share(), make_share(share="share-b", request="side")
CLAIM = make_prepared(MAIN, SIDE)
STRANGER = make_prepared(make_share(share="share-c"), uid="uid-c", name="claim-c")
ALL = [(CLAIM, MAIN), (CLAIM, SIDE), (STRANGER, STRANGER.shares[0])]


class Book:
    """One pod."""

    def __init__(self, pod: Pod | None) -> None:
        self.pod = pod

    def by_uid(self, uid: str) -> Pod | None:
        return self.pod if self.pod is not None and self.pod.uid == uid else None


BOOK = Book(digest(make_pod()))


def share_of(
    *, mounted: frozenset[str] = frozenset(), places: tuple[Place, ...] = (), book: Book = BOOK
) -> str | None:
    found = attribute(mounted=mounted, places=lambda: places, pods=book, candidates=ALL)
    return found[1].share if found else None


def test_mounts_decide() -> None:
    where = (Place("uid-train", ID),)
    assert share_of(mounted=frozenset({"share-c"}), places=where) == "share-c"


def test_a_process_that_left_its_mounts_is_found_by_its_container() -> None:
    assert share_of(places=(Place("uid-train", ID),)) == "share-a"


def test_a_container_in_a_container_belongs_to_the_outer_one() -> None:
    assert share_of(places=(Place("uid-train", ID), Place("uid-inner", "ff" * 32))) == "share-a"


def test_a_cluster_around_ours_is_passed_over() -> None:
    assert share_of(places=(Place("uid-around-us", "ff" * 32), Place("uid-train", ID))) == "share-a"


def test_with_two_shares_an_unknown_container_is_waited_for() -> None:
    assert share_of(places=(Place("uid-train", "ee" * 32),)) is None


def test_with_one_share_the_pod_is_enough() -> None:
    raw = make_pod()
    raw["status"]["resourceClaimStatuses"] = [{"name": "aliquot", "resourceClaimName": "claim-c"}]
    assert share_of(places=(Place("uid-train", "ee" * 32),), book=Book(digest(raw))) == "share-c"


def test_a_container_without_a_share_uses_nobodys() -> None:
    raw = make_pod()
    raw["status"]["containerStatuses"].append({"name": "plain", "containerID": "cri-o://" + "dd" * 32})
    assert share_of(places=(Place("uid-train", "dd" * 32),), book=Book(digest(raw))) is None


def test_processes_of_other_pods_and_of_the_host_are_outside() -> None:
    assert share_of(places=(Place("uid-other", ID),)) is None
    assert share_of() is None


def test_what_was_one_shares_process_stays_it() -> None:
    mounted = {1: frozenset({"share-a"})}
    owners = Owners(mounted=lambda pid: mounted.get(pid, frozenset()), pods=BOOK)
    candidates = {("uid-a", "share-a"): ALL[0], ("uid-c", "share-c"): ALL[2]}
    process = Process("GPU-a", 1, 100)
    owners.begin()
    assert owners.owner(process, candidates) == ("uid-a", "share-a")
    owners.end()
    mounted.clear()  # it went into a mount namespace of its own
    owners.begin()
    assert owners.owner(process, candidates) == ("uid-a", "share-a")
    assert owners.owner(Process("GPU-a", 1, 200), candidates) is None  # the next with its pid
    owners.end()
    owners.begin()
    owners.end()
    assert owners.owner(process, candidates) is None  # it was gone for a look
