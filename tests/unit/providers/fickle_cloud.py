"""A cloud whose calls go wrong by chance."""

from dataclasses import dataclass

from nstance.clock import Rng
from nstance.model.ids import InstanceId
from nstance.providers import errors, port
from nstance.providers.memory_behavior import CHANGES, Call, Life, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """How likely each fault of a call is (0 to 1), and how long things take at most, in seconds."""

    unavailable: float = 0.0
    throttled: float = 0.0
    no_capacity: float = 0.0
    refused: float = 0.0
    lost: float = 0.0  # applied, but the answer is Unknown
    unsent: float = 0.0  # not applied, and the answer is Unknown
    late: float = 0.0  # the answer is Unknown, applied within `latest`
    ignored: float = 0.0  # a delete that says yes and does nothing
    latest: float = 120.0
    delay: float = 0.0
    boot: float = 0.0
    dying: float = 0.0
    linger: float = 0.0
    lag: float = 0.0


class Fickle:
    """Faults by chance. With a seeded chance, the same calls in the same order go the same way."""

    def __init__(self, rng: Rng, odds: Odds) -> None:
        self._rng = rng
        self.odds = odds

    def outcome(self, call: Call, id: InstanceId | None) -> Outcome:
        odds, draw = self.odds, self._rng.uniform(0.0, 1.0)
        before, after = self._up_to(odds.delay), self._up_to(odds.delay)
        answer = Outcome(before=before, after=after)
        unknown = errors.UnknownOutcomeError("the answer was lost")
        faults = [
            (
                odds.unavailable,
                Outcome(before=before, applied=False, error=errors.UnavailableError("the cloud is away")),
            ),
            (odds.throttled, Outcome(applied=False, error=errors.ThrottledError("too many calls", delay=1.0))),
        ]
        if call is Call.CREATE:
            faults += [
                (odds.no_capacity, Outcome(before=before, applied=False, error=errors.NoCapacityError("no room left"))),
                (
                    odds.refused,
                    Outcome(before=before, applied=False, error=errors.PermanentError("the quota is used up")),
                ),
            ]
        if call is Call.DELETE:
            faults.append((odds.ignored, Outcome(before=before, after=after, applied=False)))
        if call in CHANGES:
            late = max(1e-3, self._up_to(odds.latest))
            faults += [
                (odds.lost, Outcome(before=before, after=after, error=unknown)),
                (odds.unsent, Outcome(before=before, after=after, applied=False, error=unknown)),
                (odds.late, Outcome(before=before, after=after, late=late, error=unknown)),
            ]
        for likelihood, outcome in faults:
            if draw < likelihood:
                return outcome
            draw -= likelihood
        return answer

    def life(self, request: port.CreateRequest) -> Life:
        odds = self.odds
        return Life(
            boot=self._up_to(odds.boot),
            dying=self._up_to(odds.dying),
            linger=self._up_to(odds.linger),
            get_lag=self._up_to(odds.lag),
            list_lag=self._up_to(odds.lag),
        )

    def _up_to(self, most: float) -> float:
        return self._rng.uniform(0.0, most)
