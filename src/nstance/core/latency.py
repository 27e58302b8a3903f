"""An estimate of how long object storage takes to answer."""

from dataclasses import dataclass, replace

SAMPLES = 3  # answers that the estimate rests on
USUAL_MOST = 10.0  # a slower store is treated like this one
TIMEOUT_LEAST, TIMEOUT_MOST = 0.7, 10.0


@dataclass(frozen=True, slots=True)
class Latency:
    """From the last few answers, and from waiting in vain.

    Leases and promises follow the usual answer: a single straggler changes nothing, and a store that cannot be reached at
    all does not make them longer. Timeouts follow the slowest answer, and triple with each one that passes.
    """

    answers: tuple[float, ...] = ()
    waited: float = 0.0  # in vain, since the last answer

    def answered(self, seconds: float) -> "Latency":
        return Latency((*self.answers[1 - SAMPLES :], seconds))

    def timed_out(self, seconds: float) -> "Latency":
        return replace(self, waited=max(self.waited, seconds))

    @property
    def usual(self) -> float:
        ordered = sorted(self.answers)
        return min(USUAL_MOST, ordered[len(ordered) // 2]) if ordered else 0.0

    @property
    def timeout(self) -> float:
        """How long to wait for the next answer."""
        return min(TIMEOUT_MOST, max(TIMEOUT_LEAST, 3 * max(self.waited, *self.answers, 0.0)))
