"""An estimate of how long object storage takes to answer."""

from dataclasses import dataclass, replace

SAMPLES = 3
USUAL_MAX_SECONDS = 10.0  # a slower store is treated like this one
TIMEOUT_MIN_SECONDS, TIMEOUT_MAX_SECONDS = 0.7, 10.0


@dataclass(frozen=True, slots=True)
class Latency:
    """From the last few answers and timeouts.

    Leases and promises follow the usual answer: a single slow one changes nothing, and a store that cannot be reached does
    not make them longer. Timeouts follow the slowest answer, and triple each time one passes.
    """

    answers: tuple[float, ...] = ()
    waited: float = 0.0  # the longest timeout since the last answer

    def answered(self, seconds: float) -> "Latency":
        return Latency((*self.answers[1 - SAMPLES :], seconds))

    def timed_out(self, seconds: float) -> "Latency":
        return replace(self, waited=max(self.waited, seconds))

    @property
    def usual(self) -> float:
        ordered = sorted(self.answers)
        return min(USUAL_MAX_SECONDS, ordered[len(ordered) // 2]) if ordered else 0.0

    @property
    def slowest(self) -> float:
        """The longest of the last few answers, or how long one was waited for in vain."""
        return min(USUAL_MAX_SECONDS, max(self.waited, *self.answers, 0.0))

    @property
    def timeout(self) -> float:
        """How long to wait for the next answer."""
        return min(TIMEOUT_MAX_SECONDS, max(TIMEOUT_MIN_SECONDS, 3 * max(self.waited, *self.answers, 0.0)))
