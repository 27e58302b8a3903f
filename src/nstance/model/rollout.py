"""A group's revisions: what was rolled out when, by whom, and how it went. Kept in the journal beside the instances."""

from dataclasses import dataclass
from enum import Enum

from nstance.model.ids import GroupKey

MAX_REVISIONS = 10  # per group; the oldest are forgotten first, but never the last complete one


class Outcome(Enum):
    ROLLING = "rolling"  # instances of an older revision are still there
    PAUSED = "paused"  # after its canaries, until somebody resumes it
    HALTED = "halted"  # too many of its instances failed to become ready: no further old instance goes
    COMPLETE = "complete"  # every instance was of this revision and ready
    SUPERSEDED = "superseded"  # a newer revision came before it was complete
    ROLLED_BACK = "rolled-back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    infra_hash: str
    started: float
    by: str = ""  # who asked for it: an operator's ID, or "config" for the configuration file
    outcome: Outcome = Outcome.ROLLING
    finished: float | None = None  # when it was complete, halted or given up
    failures: int = 0  # instances of it that did not become ready
    runtime_hash: str = ""  # of the files and vars that were last in force with it
    paused_at: float | None = None  # when its canaries were done
    resumed_at: float | None = None  # when somebody, or a timer, let it go on: it does not pause again
    message: str = ""  # why it is halted or paused


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What a new leader needs to know of a group beyond its configuration and its instances."""

    key: GroupKey
    dynamic: bool = False  # it was made through the API, so that without groups.jsonc its absence proves nothing
    revisions: tuple[Revision, ...] = ()  # oldest first; the last one is current

    @property
    def current(self) -> Revision | None:
        return self.revisions[-1] if self.revisions else None

    def last_complete(self) -> Revision | None:
        """The newest revision before the current one, and other than it, that was fully rolled out."""
        current = self.current
        return next(
            (
                r
                for r in reversed(self.revisions[:-1])
                if r.outcome is Outcome.COMPLETE and current is not None and r.infra_hash != current.infra_hash
            ),
            None,
        )

    @property
    def is_empty(self) -> bool:
        """Says nothing: putting such a record removes it."""
        return not self.dynamic and not self.revisions
