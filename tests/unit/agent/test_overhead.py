# SPDX-License-Identifier: Apache-2.0
from aliquot_agent import region
from aliquot_agent.overhead import Tracker
from tests.unit.agent.test_region import with_words

MIB = 1024**2
ESTIMATE = 500 * MIB


def unmeasured(
    *, used: int = 0, contexts: int = 1, changes: int = 1, generation: int = 1, managed: int = 0
) -> region.Slot:
    return with_words(
        used_bytes=used,
        managed_bytes=managed,
        contexts=contexts,
        changes=changes,
        generation=generation,
        overhead_bytes=region.OVERHEAD_UNKNOWN,
    )


def observe(
    tracker: Tracker, before: region.Slot, nvml: int | None, after: region.Slot | None = None
) -> int | None:
    return tracker.observe(
        before=before, after=after or before, nvml_bytes=nvml, context_estimate_bytes=ESTIMATE
    )


def test_less_than_the_estimate_is_believed_when_two_samples_agree() -> None:
    tracker, slot = Tracker(), unmeasured(used=100 * MIB)
    assert observe(tracker, slot, 400 * MIB) is None
    assert observe(tracker, slot, 400 * MIB) == 300 * MIB


def test_a_context_that_is_being_made_is_not_taken_for_a_small_one() -> None:
    tracker, slot = Tracker(), unmeasured()
    assert observe(tracker, slot, 10 * MIB) is None  # announced in the slot, not all there yet
    assert observe(tracker, slot, 300 * MIB) == 300 * MIB


def test_more_than_is_counted_is_believed_at_once() -> None:
    assert observe(Tracker(), unmeasured(), 700 * MIB) == 700 * MIB


def test_a_measured_slot_is_left_alone() -> None:
    slot = with_words(contexts=1, measured_contexts=1, overhead_bytes=300 * MIB)
    tracker = Tracker()
    assert [observe(tracker, slot, 300 * MIB) for _ in range(3)] == [None, None, None]


def test_a_moving_slot_gives_the_smallest_of_several_samples() -> None:
    tracker = Tracker()
    answers = [
        observe(tracker, unmeasured(changes=turn), nvml * MIB, unmeasured(changes=turn + 1))
        for turn, nvml in enumerate([900, 800, 850])
    ]
    assert answers == [None, None, 800 * MIB]


def test_a_new_context_asks_for_new_samples() -> None:
    tracker = Tracker()
    observe(tracker, unmeasured(contexts=1), 300 * MIB)
    assert observe(tracker, unmeasured(contexts=2), 600 * MIB) is None
    assert observe(tracker, unmeasured(contexts=2), 600 * MIB) == 600 * MIB


def test_a_new_owner_of_the_slot_starts_afresh() -> None:
    tracker = Tracker()
    observe(tracker, unmeasured(generation=1), 300 * MIB)
    assert observe(tracker, unmeasured(generation=2), 300 * MIB) is None


def test_a_slot_that_changed_hands_in_between_is_not_written() -> None:
    assert observe(Tracker(), unmeasured(generation=1), 900 * MIB, unmeasured(generation=2)) is None


def test_use_above_what_nvml_shows_is_no_overhead() -> None:
    tracker, slot = Tracker(), unmeasured(used=100 * MIB)
    observe(tracker, slot, 90 * MIB)
    assert observe(tracker, slot, 90 * MIB) == 0


def test_where_nvml_does_not_say_the_estimate_stays() -> None:
    tracker = Tracker()
    assert [observe(tracker, unmeasured(), None) for _ in range(3)] == [None, None, None]


def test_words_that_are_no_counts_are_not_measured() -> None:
    tracker, slot = Tracker(), unmeasured(used=2**64 - 1)
    assert [observe(tracker, slot, 300 * MIB) for _ in range(3)] == [None, None, None]


def test_managed_memory_off_the_gpu_hides_no_context() -> None:
    tracker, slot = Tracker(), unmeasured(used=8192 * MIB, managed=8192 * MIB)
    assert observe(tracker, slot, 300 * MIB) is None
    assert observe(tracker, slot, 300 * MIB) == 300 * MIB


def test_managed_memory_on_the_gpu_is_no_overhead() -> None:
    used = 8192 * MIB
    slot = with_words(
        used_bytes=used, managed_bytes=used, contexts=1, measured_contexts=1, overhead_bytes=300 * MIB
    )
    assert observe(Tracker(), slot, used + 300 * MIB) is None, "as it was measured before"
    assert observe(Tracker(), slot, used + 400 * MIB) == 400 * MIB, "that much is certain"
    assert observe(Tracker(), unmeasured(used=used, managed=used), used + 300 * MIB) == ESTIMATE


def test_a_context_that_ended_beside_managed_memory_on_the_gpu_is_no_overhead() -> None:
    used = 8192 * MIB
    slot = with_words(
        used_bytes=used, managed_bytes=used, contexts=1, measured_contexts=2, overhead_bytes=2 * ESTIMATE
    )
    tracker = Tracker()
    assert [observe(tracker, slot, used + 300 * MIB) for _ in range(2)] == [None, ESTIMATE]


def test_more_managed_memory_than_is_in_use_is_taken_for_all_of_it() -> None:
    tracker, slot = Tracker(), unmeasured(used=100 * MIB, managed=2**64 - 1)
    assert [observe(tracker, slot, 300 * MIB) for _ in range(2)] == [None, 300 * MIB]
