# SPDX-License-Identifier: Apache-2.0
from aliquot_agent.outside import Outside, withheld
from tests.unit.agent.kit import GIB, make_gpu
from tests.unit.agent.shares import make_prepared, make_share

MIB = 1024**2
GPU = "GPU-a"


def observe(outside: Outside, *looks: tuple[float, int]) -> list[int]:
    """What is withheld after each look, in MiB."""
    found = []
    for now_s, held in looks:
        outside.observe(GPU, held * MIB, now_s=now_s)
        found.append(outside.withheld_bytes(GPU) // MIB)
    return found


def test_memory_held_outside_counts_from_the_second_look_in_steps() -> None:
    assert observe(Outside(quiet_s=60), (0, 100), (1, 100), (2, 101), (3, 110)) == [0, 128, 128, 128]


def test_a_process_of_a_moment_is_nothing() -> None:
    assert observe(Outside(quiet_s=60), (0, 5000), (1, 0), (2, 5000), (3, 0)) == [0, 0, 0, 0]


def test_of_two_looks_the_smaller_counts() -> None:
    assert observe(Outside(quiet_s=60), (0, 64), (1, 6400), (2, 6400), (3, 6400)) == [0, 64, 64, 6400]


def test_memory_comes_back_after_a_quiet_minute() -> None:
    looks = [(float(now), 6400 if now < 2 else 640) for now in range(70)]
    assert observe(Outside(quiet_s=60), *looks)[-1] == 640
    outside = Outside(quiet_s=60)
    assert observe(outside, *looks[:60])[-1] == 6400
    assert not outside.observe(GPU, 640 * MIB, now_s=60)
    assert outside.observe(GPU, 640 * MIB, now_s=62)


def test_what_goes_up_and_down_stays_withheld_at_its_highest() -> None:
    looks = [(0.0, 6400), (1.0, 6400)]
    looks += [(float(now), 6400 if now % 50 < 2 else 64) for now in range(2, 200)]
    assert set(observe(Outside(quiet_s=60), *looks)[1:]) == {6400}


def test_changes_are_told_once() -> None:
    outside = Outside(quiet_s=60)
    told = [outside.observe(GPU, 640 * MIB, now_s=now) for now in range(5)]
    assert told == [False, True, False, False, False]


def test_the_reserve_has_room_for_it_and_grants_come_on_top() -> None:
    gpu = make_gpu(0)
    share = make_share(device="gpu-a", gpu_uuid=gpu.uuid, memory_bytes=GIB, grant_bytes=2 * GIB)
    found = withheld(
        [make_prepared(share)],
        {"gpu-a": gpu, "gpu-b": make_gpu(1)},
        reserve_bytes=lambda gpu: 1 * GIB,
        outside_bytes=lambda uuid: 3 * GIB if uuid == gpu.uuid else GIB // 2,
    )
    assert found == {"gpu-a": 4 * GIB, "gpu-b": 0}
