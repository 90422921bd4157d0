"""Samples of one figure, ratios between two, and whether a figure keeps a target. Pure."""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Spread:
    """A median and the range around it."""
    median: float
    low: float
    high: float


def spread_of(values):
    """The Spread of a non-empty sequence."""
    values = list(values)
    return Spread(statistics.median(values), min(values), max(values))


def ratio_of(samples, beside):
    """The ratio of the medians of two {round: value}; low and high are over the rounds that both have.

    Returns None where either has no sample, or where the other's median is 0.
    """
    if not samples or not beside or statistics.median(beside.values()) == 0:
        return None
    median = statistics.median(samples.values()) / statistics.median(beside.values())
    pairs = [samples[r] / beside[r] for r in samples.keys() & beside.keys() if beside[r] != 0]
    if not pairs:
        return Spread(median, median, median)
    return Spread(median, min(pairs), max(pairs))


@dataclasses.dataclass(frozen=True)
class Target:
    """A bound that a figure or a ratio should keep. `kind` is "<=", "<" or ">="."""
    kind: str
    bound: float

    def __post_init__(self):
        if self.kind not in ("<=", "<", ">="):
            raise ValueError(f"no such kind of target: {self.kind!r}")

    def met(self, value):
        return {"<=": value <= self.bound, "<": value < self.bound, ">=": value >= self.bound}[self.kind]

    def __str__(self):
        return f"{self.kind} {self.bound:g}"
