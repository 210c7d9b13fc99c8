# SPDX-License-Identifier: Apache-2.0
"""Percent of a GPU's time over time, from samples of how much each tenant had ever used. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """What each tenant had used when."""

    at_s: float
    used_ns: Mapping[str, int]


def percent(begin: Sample, end: Sample, tenant: str) -> float:
    """Of the time between two samples."""
    used = end.used_ns.get(tenant, 0) - begin.used_ns.get(tenant, 0)
    return used / (end.at_s - begin.at_s) / 1e7


def windows(samples: Sequence[Sample], length_s: float) -> Iterator[tuple[Sample, Sample]]:
    """Every window of at least that length, none longer than it must be."""
    for first, begin in enumerate(samples):
        for end in samples[first + 1 :]:
            if end.at_s - begin.at_s >= length_s:
                yield begin, end
                break


def after(samples: Sequence[Sample], at_s: float) -> Sequence[Sample]:
    """Those from then on, by the first one's clock."""
    return [sample for sample in samples if sample.at_s - samples[0].at_s >= at_s]


def worst(samples: Sequence[Sample], tenant: str, wanted: float, length_s: float) -> float:
    """How many points the window that is farthest from `wanted` is away from it."""
    return max(abs(percent(*window, tenant) - wanted) for window in windows(samples, length_s))


def reached(samples: Sequence[Sample], tenant: str, wanted: float, length_s: float) -> float:
    """Seconds until the first window begins in which a tenant has at least `wanted`; all of them: never."""
    for begin, end in windows(samples, length_s):
        if percent(begin, end, tenant) >= wanted:
            return begin.at_s - samples[0].at_s
    return samples[-1].at_s - samples[0].at_s


def curve(samples: Sequence[Sample], tenant: str) -> list[tuple[float, float]]:
    """Seconds since the first sample, and percent since the one before."""
    zero = samples[0].at_s
    return [(end.at_s - zero, percent(begin, end, tenant)) for begin, end in windows(samples, 0.2)]
