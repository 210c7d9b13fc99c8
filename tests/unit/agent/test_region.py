# SPDX-License-Identifier: Apache-2.0
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot_agent import region, sharedir
from aliquot_agent.region import DamagedRegion, Quota, Slot
from tests.unit.agent.tenant import Tenant

UUID = "GPU-00000000-0000-0000-0000-00abcdef0000"
WORD = st.integers(min_value=0, max_value=2**64 - 1)
SLOT = Slot(
    index=0,
    used_bytes=0,
    generation=1,
    overhead_bytes=0,
    contexts=0,
    changes=0,
    pid=1,
    pidns_inode=1,
    start_ticks=1,
    host_pid=0,
    measured_contexts=0,
)


def with_words(**words: int) -> Slot:
    return Slot(**{field: words.get(field, getattr(SLOT, field)) for field in Slot.__slots__})


@given(memory=WORD, cores=WORD, estimate=WORD, epoch=WORD)
def test_a_quota_comes_back_as_it_was_written(memory: int, cores: int, estimate: int, epoch: int) -> None:
    quota = Quota(
        gpu_uuid=UUID,
        memory_limit_bytes=memory,
        cores_millipercent=cores,
        context_estimate_bytes=estimate,
        epoch=epoch,
    )
    assert region.decode_quota(region.encode_quota(quota)) == quota


@pytest.mark.parametrize("offset", [0, 8, 12, 16, 32])
def test_a_changed_quota_header_is_noticed(offset: int) -> None:
    page = bytearray(region.encode_quota(Quota(gpu_uuid=UUID, memory_limit_bytes=1)))
    page[offset] ^= 1
    with pytest.raises(DamagedRegion):
        region.decode_quota(bytes(page))


@pytest.mark.parametrize("text", ["", "MIG-1", "GPU-", "GPU-xyz", "00000000-0000-0000-0000-00abcdef0000"])
def test_what_is_no_gpu_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want GPU-xxxxxxxx"):
        region.uuid_bytes(text)


@given(header=st.binary(max_size=region.LEDGER_HEADER_SIZE), slots=st.binary(max_size=4 * region.SLOT_SIZE))
def test_any_bytes_are_a_ledger_or_damaged(header: bytes, slots: bytes) -> None:
    good = region.encode_ledger_header(1)
    for candidate in (header, good[: len(good) - len(header)] + header):
        try:
            region.decode_ledger(candidate, slots)
        except DamagedRegion:
            continue


@pytest.mark.parametrize(
    ("slot", "counted"),
    [
        pytest.param(with_words(used_bytes=7), 7, id="no context"),
        pytest.param(
            with_words(used_bytes=7, contexts=2, overhead_bytes=region.OVERHEAD_UNKNOWN),
            207,
            id="not measured",
        ),
        pytest.param(
            with_words(used_bytes=7, contexts=1, measured_contexts=1, overhead_bytes=30), 37, id="measured"
        ),
        pytest.param(
            with_words(used_bytes=7, contexts=3, measured_contexts=1, overhead_bytes=30),
            237,
            id="newer contexts",
        ),
        pytest.param(
            with_words(used_bytes=7, contexts=0, measured_contexts=1, overhead_bytes=30),
            37,
            id="fewer contexts",
        ),
    ],
)
def test_a_slot_counts_what_the_shim_counts(slot: Slot, counted: int) -> None:
    assert region.counted_bytes(slot, 100) == counted


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"used_bytes": 2**64 - 1}, id="used"),
        pytest.param({"used_bytes": region.SANE_BYTES + 1}, id="used, just above"),
        pytest.param({"overhead_bytes": 2**64 - 2}, id="overhead"),
        pytest.param({"contexts": 2**32, "overhead_bytes": region.OVERHEAD_UNKNOWN}, id="contexts"),
    ],
)
def test_words_that_are_no_counts_are_not_counted(words: dict[str, int]) -> None:
    slot = with_words(**words)
    ledger = region.Ledger(
        generation=1, slots_used=2, denied=2**64 - 1, throttled_ns=0, peak_bytes=2**64 - 1, slots=(slot,)
    )
    quota = Quota(gpu_uuid=UUID, memory_limit_bytes=100)
    assert region.counted_bytes(slot, 0) is None
    unknown = region.usage(quota, ledger, most_bytes=1000)
    assert (unknown.used_bytes, unknown.peak_bytes, unknown.denied) == (0, 0, 2**63 - 1)
    measured = region.usage(quota, ledger, most_bytes=1000, measured={0: 70})
    assert (measured.used_bytes, measured.peak_bytes) == (70, 70)


@given(words=st.tuples(WORD, WORD, WORD, WORD), peak=WORD, measured=WORD)
def test_no_number_is_above_what_there_is(words: tuple[int, int, int, int], peak: int, measured: int) -> None:
    names = ("used_bytes", "overhead_bytes", "contexts", "measured_contexts")
    slot = with_words(**dict(zip(names, words, strict=True)))
    ledger = region.Ledger(
        generation=1, slots_used=2, denied=0, throttled_ns=0, peak_bytes=peak, slots=(slot, slot)
    )
    quota = Quota(gpu_uuid=UUID, memory_limit_bytes=100, context_estimate_bytes=5)
    usage = region.usage(quota, ledger, most_bytes=1000, measured={0: measured})
    assert usage.used_bytes <= usage.peak_bytes <= 1000


def test_limits_change_in_place_and_move_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "share"
    sharedir.create(path, Quota(gpu_uuid=UUID, memory_limit_bytes=100, cores_millipercent=5))
    inode = (path / "quota").stat().st_ino
    with sharedir.ShareFiles(path=path) as running, sharedir.ShareFiles(path=path) as changer:
        changer.set_quota(memory_limit_bytes=200)
        assert (running.quota().memory_limit_bytes, running.quota().cores_millipercent) == (200, 5)
        assert running.quota().epoch == 1
    assert (path / "quota").stat().st_ino == inode


def test_a_share_is_never_made_twice(tmp_path: Path) -> None:
    quota = Quota(gpu_uuid=UUID, memory_limit_bytes=100)
    sharedir.create(tmp_path / "share", quota)
    with pytest.raises(FileExistsError, match="is a share already"):
        sharedir.create(tmp_path / "share", quota)
    assert [path.name for path in tmp_path.iterdir()] == ["share"]


def test_a_ledger_is_zero_and_backed_by_the_disk(tmp_path: Path) -> None:
    sharedir.create(tmp_path / "share", Quota(gpu_uuid=UUID, memory_limit_bytes=100))
    ledger = tmp_path / "share" / "ledger"
    assert ledger.stat().st_size == region.LEDGER_SIZE
    assert ledger.stat().st_blocks * 512 >= region.LEDGER_SIZE
    assert not any(ledger.read_bytes()[region.LEDGER_HEADER_SIZE :])


def test_a_truncated_ledger_is_damaged_and_kills_nobody(tmp_path: Path) -> None:
    sharedir.create(tmp_path / "share", Quota(gpu_uuid=UUID, memory_limit_bytes=100))
    tenant = Tenant(tmp_path / "share")
    with sharedir.ShareFiles(path=tmp_path / "share") as opened:
        assert len(opened.ledger().slots) == 1
        tenant.truncate()
        with pytest.raises(DamagedRegion):
            opened.ledger()
        assert opened.slot(0) is None
    tenant.die()


@pytest.mark.parametrize("name", ["quota", "ledger"])
def test_a_link_in_a_shares_directory_is_not_followed(tmp_path: Path, name: str) -> None:
    share, elsewhere = tmp_path / "share", tmp_path / "elsewhere"
    sharedir.create(share, Quota(gpu_uuid=UUID, memory_limit_bytes=100))
    (share / name).rename(elsewhere)
    (share / name).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.raises(OSError, match="symbolic links"):
        sharedir.ShareFiles(path=share)
    sharedir.remove(str(share))
    assert elsewhere.read_bytes() == before


def test_a_share_is_busy_while_a_slot_is_locked(tmp_path: Path) -> None:
    sharedir.create(tmp_path / "share", Quota(gpu_uuid=UUID, memory_limit_bytes=100))
    tenant = Tenant(tmp_path / "share", index=3)
    with sharedir.ShareFiles(path=tmp_path / "share") as opened:
        assert opened.busy()
        tenant.die()
        assert not opened.busy()


def test_a_cleared_slot_is_free_with_a_higher_generation(tmp_path: Path) -> None:
    sharedir.create(tmp_path / "share", Quota(gpu_uuid=UUID, memory_limit_bytes=100))
    Tenant(tmp_path / "share").die()
    with sharedir.ShareFiles(path=tmp_path / "share") as opened:
        slot = opened.slot(0)
        assert slot is not None
        opened.clear_slot(slot)
        assert opened.slot(0) is None
    raw = (tmp_path / "share" / "ledger").read_bytes()[region.LEDGER_HEADER_SIZE :][: region.SLOT_SIZE]
    layout = region.SlotLayout.from_buffer_copy(raw)
    assert (layout.generation, layout.overhead_bytes) == (slot.generation + 1, region.OVERHEAD_UNKNOWN)


@pytest.mark.parametrize("field", ["memory_limit_bytes", "flags", "magic", "reserved1"])
def test_a_quota_is_restored_in_place(tmp_path: Path, field: str) -> None:
    quota = Quota(gpu_uuid=UUID, memory_limit_bytes=100, cores_millipercent=5)
    sharedir.create(tmp_path / "share", quota)
    with sharedir.ShareFiles(path=tmp_path / "share") as opened:
        opened.beat(77)
        assert not opened.restore_quota(quota)
        with (tmp_path / "share" / "quota").open("r+b") as file:
            file.seek(getattr(region.QuotaLayout, field).offset)
            file.write(b"\xff" * 8)
        assert opened.restore_quota(quota)
        assert opened.quota() == replace(quota, epoch=1, heartbeat_ns=77)
        assert not opened.restore_quota(quota)


def test_the_words_of_pacing_are_for_who_paces(tmp_path: Path) -> None:
    quota = Quota(gpu_uuid=UUID, memory_limit_bytes=100, cores_millipercent=5)
    words = region.Pacing(7, lent_millipercent=8, lent_until_ns=9, cost_factor_ppm=10, priority=1)
    sharedir.create(tmp_path / "share", quota)
    with sharedir.ShareFiles(path=tmp_path / "share") as opened:
        opened.set_pacing(opened.pacing(), words)
        assert not opened.restore_quota(quota)
        opened.restore_quota(replace(quota, memory_limit_bytes=200))
        assert opened.pacing() == words
        assert opened.quota().memory_limit_bytes == 200


@pytest.mark.parametrize("size", [0, 100, region.LEDGER_SIZE - 1, 2 * region.LEDGER_SIZE])
def test_a_ledger_gets_its_size_back(tmp_path: Path, size: int) -> None:
    sharedir.create(tmp_path / "share", Quota(gpu_uuid=UUID, memory_limit_bytes=100))
    ledger = tmp_path / "share" / "ledger"
    with sharedir.ShareFiles(path=tmp_path / "share") as opened:
        assert not opened.restore_ledger()
        os.truncate(ledger, size)
        assert opened.restore_ledger()
        assert (ledger.stat().st_size, opened.restore_ledger()) == (region.LEDGER_SIZE, False)
        assert ledger.stat().st_blocks * 512 >= region.LEDGER_SIZE


@pytest.mark.parametrize("mode", [0o000, 0o4777, 0o600])
def test_a_ledger_gets_its_mode_back(tmp_path: Path, mode: int) -> None:
    sharedir.create(tmp_path / "share", Quota(gpu_uuid=UUID, memory_limit_bytes=100))
    ledger = tmp_path / "share" / "ledger"
    with sharedir.ShareFiles(path=tmp_path / "share") as opened:
        ledger.chmod(mode)
        assert opened.restore_ledger()
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o666
