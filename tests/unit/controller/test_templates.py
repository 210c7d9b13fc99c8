# SPDX-License-Identifier: Apache-2.0
"""The deleting half of the template protocol, and both halves against each other."""

import os
from datetime import timedelta
from typing import Any

import pytest

from aliquot_webhook.kube import ApiError, Keep
from aliquot_webhook.templates import collection, timestamp
from tests.unit.controller.template_model import PODS, Bed, Model
from tests.unit.webhook.test_templates import GRACE_S, START, a_template


def test_an_unused_template_goes_after_the_grace_period_and_not_before() -> None:
    bed = Bed()
    bed.admit()
    bed.now += timedelta(seconds=GRACE_S + 1)
    assert bed.collector.collect() == 0
    bed.now += timedelta(seconds=1)
    assert bed.collector.collect() == 1
    assert not bed.exists()


def test_a_template_that_a_pod_names_stays() -> None:
    bed = Bed()
    bed.admit()
    bed.persist("a")
    bed.now += timedelta(days=10)
    assert bed.collector.collect() == 0
    del bed.api.objects[f"{PODS}/a"]
    assert bed.collector.collect() == 1


def test_a_pod_of_another_namespace_does_not_count() -> None:
    bed = Bed()
    bed.admit()
    bed.persist("a")
    bed.api.objects["/api/v1/namespaces/team-b/pods/a"] = bed.api.objects.pop(f"{PODS}/a")
    bed.now += timedelta(days=10)
    assert bed.collector.collect() == 1


def test_a_use_between_look_and_deletion_saves_it() -> None:
    bed = Bed()
    bed.admit()
    bed.now += timedelta(seconds=GRACE_S + 2)
    original = bed.api.list_all

    def list_all(path: str, query: dict[str, str], keep: Keep) -> tuple[list[Any], str]:
        answer = original(path, query, keep)
        if path == PODS:
            bed.admit()  # refreshes: the pod itself comes later
        return answer

    bed.api.list_all = list_all  # type: ignore[assignment, method-assign] # the moment of the race
    assert bed.collector.collect() == 0
    assert bed.exists()


def test_a_template_without_a_readable_stamp_goes_an_hour_after_its_creation() -> None:
    bed = Bed()
    metadata = {"name": "x", "namespace": "team-a", "creationTimestamp": timestamp(START)}
    bed.api.put(f"{collection('team-a')}/x", {"metadata": metadata})
    assert bed.collector.collect() == 0
    bed.now += timedelta(hours=1, seconds=1)
    assert bed.collector.collect() == 1


def test_one_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    bed = Bed()
    bed.admit()
    bed.webhook.ensure("team-a", a_template(5), dry_run=False)
    bed.api.forbidden.add(("DELETE", a_template().name))
    bed.now += timedelta(days=1)

    assert bed.collector.collect() == 1
    assert bed.exists()


def test_a_list_that_cannot_be_read_deletes_nothing() -> None:
    bed = Bed()
    bed.admit()
    bed.now += timedelta(days=1)
    original = bed.api.list_all

    def list_all(path: str, query: dict[str, str], keep: Keep) -> tuple[list[Any], str]:
        if path == PODS:
            raise ApiError(status=403, message="pods is forbidden")
        return original(path, query, keep)

    bed.api.list_all = list_all  # type: ignore[assignment, method-assign] # a missing permission
    with pytest.raises(ApiError):
        bed.collector.collect()
    assert bed.exists()


@pytest.mark.parametrize("seed", range(int(os.environ.get("ALIQUOT_TEMPLATE_MODELS", "150"))))
def test_no_admitted_pod_is_stranded_and_nothing_stays_whatever_the_order(seed: int) -> None:
    """Three webhooks whose watches lag and whose graces differ, two collectors, pods that appear up to a
    minute after their admission or never; before each call to the server anybody may do anything."""
    Model(Bed(), seed).run(40)


def test_the_end_of_a_stamp_second_by_second() -> None:
    """An admission around the end of the stamp, a look of the controller some time later, a pod that arrives
    before it, after it, or at the last moment."""
    for before_end_s in range(-6, 150, 6):
        for look_after_s in range(0, 160, 7):
            for arrives_after_s in (0, 20, 40, 59):
                bed = Bed()
                bed.admit()
                bed.now += timedelta(seconds=GRACE_S - before_end_s)
                bed.admit()
                answered = bed.now
                looks = [(look_after_s, "look"), (arrives_after_s, "arrive"), (arrives_after_s + 1, "look")]
                for after_s, move in sorted(looks):
                    bed.now = answered + timedelta(seconds=after_s)
                    if move == "look":
                        bed.collector.collect()
                    else:
                        bed.persist("pod")
                        assert bed.exists(), (before_end_s, look_after_s, arrives_after_s)
                assert bed.exists()
