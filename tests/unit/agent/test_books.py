# SPDX-License-Identifier: Apache-2.0
import pytest

from aliquot_agent import books, region
from aliquot_agent.books import Holder
from aliquot_agent.region import Slot

MIB = 1024**2
ESTIMATE = 100 * MIB
TOLERANCE = 64 * MIB


def slot(used: int, *, contexts: int = 1, overhead: int = 0) -> Slot:
    return Slot(
        index=0,
        used_bytes=used * MIB,
        generation=1,
        overhead_bytes=overhead * MIB,
        contexts=contexts,
        changes=1,
        pid=7,
        pidns_inode=1,
        start_ticks=1,
        host_pid=0,
        measured_contexts=contexts,
    )


def holder(
    held: int | None,
    *,
    counted: Slot | None = None,
    pid: int = 1,
    start: int = 1,
    library: bool = True,
    before: int = 0,
) -> Holder:
    return Holder(
        host_pid=pid,
        start_ticks=start,
        held_bytes=None if held is None else held * MIB,
        slot=counted,
        before_bytes=before * MIB,
        library=library,
    )


def compared(*holders: Holder) -> books.Books:
    return books.compare(holders, context_estimate_bytes=ESTIMATE, tolerance_bytes=TOLERANCE)


def test_honest_books_agree() -> None:
    found = compared(holder(400, counted=slot(300, overhead=100)))
    assert (found.measured_bytes, found.counted_bytes) == (400 * MIB, 400 * MIB)
    assert (found.bypassing, found.unexplained, found.wrong) == ((), (), False)


def test_a_process_without_slot_is_in_no_book() -> None:
    honest, bypassing = holder(400, counted=slot(300, overhead=100)), holder(500, pid=2)
    found = compared(honest, bypassing)
    assert found.bypassing == (bypassing,)
    assert (found.measured_bytes, found.counted_bytes, found.wrong) == (900 * MIB, 400 * MIB, True)
    assert books.offenders([honest, bypassing], found) == (bypassing,)


def test_a_slot_without_the_library_is_forged() -> None:
    forged = holder(400, counted=slot(400), library=False)
    assert compared(forged).bypassing == (forged,)


def test_a_process_without_memory_is_nobodys_fault() -> None:
    found = compared(holder(0))
    assert not found.wrong
    assert books.offenders([holder(0)], found) == ()


@pytest.mark.parametrize(
    ("held", "counted", "before", "explained"),
    [
        pytest.param(563, slot(300, contexts=1), 0, True, id="a context of twice the estimate"),
        pytest.param(565, slot(300, contexts=1), 0, False, id="more than that"),
        pytest.param(400, slot(0, contexts=0), 0, False, id="lowered to nothing"),
        pytest.param(400, slot(0, contexts=0), 400, True, id="given back while the driver was asked"),
        pytest.param(None, slot(0, contexts=0), 0, True, id="the driver does not say"),
    ],
)
def test_what_a_process_wrote_must_explain_what_it_holds(
    held: int | None, counted: Slot, before: int, explained: bool
) -> None:
    found = compared(holder(held, counted=counted, before=before))
    assert (found.unexplained == ()) is explained


def test_words_that_are_no_counts_explain_nothing() -> None:
    huge = slot((region.SANE_BYTES >> 20) + 1)
    assert compared(holder(400, counted=huge)).unexplained
    assert compared(holder(400, counted=slot(400, contexts=region.SANE_CONTEXTS + 1))).unexplained


def test_where_all_is_explained_the_biggest_is_to_blame_then_the_youngest() -> None:
    small, old, young = (
        holder(held, counted=slot(held), pid=pid, start=start)
        for held, pid, start in ((100, 1, 30), (500, 2, 10), (500, 3, 20))
    )
    everyone = [small, old, young]
    assert books.offenders(everyone, compared(*everyone)) == (young,)


def test_what_the_driver_does_not_say_is_taken_from_the_ledger() -> None:
    found = compared(holder(None, counted=slot(300, overhead=50)), holder(None, pid=2))
    assert found.measured_bytes == 350 * MIB
