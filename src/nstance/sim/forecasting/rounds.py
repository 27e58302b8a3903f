"""Finds rounds that repeat: a bad image is tried, given up and tried again, every ten minutes for hours.

A round ends when no instance is starting or leaving any more. Two rounds in a row are alike if they took equally long, did
the same and left the same instances running. The trap: a rollout repeats the same steps too, but each time for another
instance; only the set of running instances tells the two apart.
"""

from collections import Counter
from dataclasses import dataclass

from nstance.model.ids import InstanceId

TOLERANCE = 0.03  # of a round's length: deletions take a few seconds more or less


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnd:
    at: float
    counts: Counter[str]
    running: frozenset[InstanceId]
    point: int  # the index of the point that shows it


class Rounds:
    def __init__(self) -> None:
        self._ends: list[RoundEnd] = []
        self._running: frozenset[InstanceId] = frozenset()

    def clear(self) -> None:
        self._ends.clear()

    def on_end(self, end: RoundEnd) -> bool:
        """Returns whether it may repeat: the same instances run as at the end of the last round."""
        if end.running != self._running:
            self._ends, self._running = [], end.running
            return False
        self._ends = [*self._ends[-2:], end]
        return True

    def find_repetition(self) -> tuple[RoundEnd, RoundEnd] | None:
        """Where the last two rounds began and ended, if they were alike."""
        if len(self._ends) < 3:
            return None
        first, second, third = self._ends
        one, other = second.at - first.at, third.at - second.at
        same = abs(one - other) <= TOLERANCE * max(one, other) and _done(first, second) == _done(second, third)
        return (first, third) if same else None


def _done(since: RoundEnd, until: RoundEnd) -> dict[str, int]:
    """Decisions and calls to the cloud. The number of requests to storage is never exactly the same."""
    done = until.counts - since.counts
    return {name: number for name, number in done.items() if not name.startswith("request ")}
