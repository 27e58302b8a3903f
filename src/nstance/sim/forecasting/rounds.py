"""Rounds that are all alike: a bad image is tried, given up and tried again, every ten minutes for hours.

A round ends when nothing is coming or leaving any more. Two in a row are alike if they took as long, did the same and left
the same instances running. The trap: a rotation does the same again and again as well, but each time to another instance,
so it gets somewhere; only who is running tells them apart.
"""

from collections import Counter
from dataclasses import dataclass

from nstance.model.ids import InstanceId

TOLERANCE = 0.03  # of a round's length: deletions take some seconds, more or less


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Of a round."""

    at: float
    counts: Counter[str]
    running: frozenset[InstanceId]
    point: int  # the number of the point that shows it


class Rounds:
    def __init__(self) -> None:
        self._ends: list[End] = []
        self._running: frozenset[InstanceId] = frozenset()

    def forget(self) -> None:
        self._ends.clear()

    def ended(self, end: End) -> bool:
        """Says whether it may be one of many: the same are running as at the last one's end."""
        if end.running != self._running:
            self._ends, self._running = [], end.running
            return False
        self._ends = [*self._ends[-2:], end]
        return True

    def alike(self) -> tuple[End, End] | None:
        """Where the last two rounds began and where they ended, if they were alike."""
        if len(self._ends) < 3:
            return None
        first, second, third = self._ends
        one, other = second.at - first.at, third.at - second.at
        same = abs(one - other) <= TOLERANCE * max(one, other) and _done(first, second) == _done(second, third)
        return (first, third) if same else None


def _done(since: End, until: End) -> dict[str, int]:
    """What was decided and asked of the cloud; the number of requests to storage is never quite the same."""
    done = until.counts - since.counts
    return {what: number for what, number in done.items() if not what.startswith("request ")}
