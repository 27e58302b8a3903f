"""A measured row with its goal."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    number: str
    what: str
    value: float
    unit: str
    goal: float
    at_least: bool = False  # more is better
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    @property
    def ratio(self) -> float:
        """1 meets the goal, 2 is twice as good."""
        if self.at_least:
            return self.value / self.goal
        return self.goal / self.value if self.value else float("inf")


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float], unit: str, digits: int = 1) -> str:
    """p50/p99/max of a series, for the detail column."""
    middle, high, most = percentile(values, 0.5), percentile(values, 0.99), max(values)
    return f"n={len(values)} p50={middle:.{digits}f} p99={high:.{digits}f} max={most:.{digits}f} {unit}"
