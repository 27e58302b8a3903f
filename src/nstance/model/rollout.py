"""A group's revisions: what was rolled out when, by whom, and with what outcome. Stored in the journal."""

from dataclasses import dataclass
from enum import Enum

from nstance.model.ids import GroupKey

MAX_REVISIONS = (
    10  # per group; the oldest are dropped first, but never the last complete one nor one that instances have
)


class Outcome(Enum):
    ROLLING = "rolling"  # instances of an older revision still exist
    PAUSED = "paused"  # after its canaries, until it is resumed
    HALTED = "halted"  # too many of its instances did not become ready: no further old instance is removed
    COMPLETE = "complete"  # every instance was of this revision and ready
    SUPERSEDED = "superseded"  # a newer revision started before it was complete
    ROLLED_BACK = "rolled-back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    infra_hash: str
    started: float
    by: str = ""  # who requested it: an operator's ID, or "config" for the configuration file
    outcome: Outcome = Outcome.ROLLING
    finished: float | None = None  # when it was completed, halted or replaced by another revision
    failures: int = 0  # instances of it that did not become ready
    runtime_hash: str = ""  # of the files, vars and checks that were last active with it (`Group.parts_hash`)
    paused_at: float | None = None  # when its canaries were done
    resumed_at: float | None = None  # when a person or a timer resumed it: it does not pause again
    message: str = ""  # why it is halted or paused


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What a new leader needs to know about a group beyond its configuration and its instances."""

    key: GroupKey
    dynamic: bool = False  # created through the API: if groups.jsonc is missing, its absence proves nothing
    revisions: tuple[Revision, ...] = ()  # oldest first; the last one is current

    @property
    def current(self) -> Revision | None:
        return self.revisions[-1] if self.revisions else None

    def last_complete(self) -> Revision | None:
        """The newest earlier revision that was fully rolled out and differs from the current one."""
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
        """Putting an empty record removes it."""
        return not self.dynamic and not self.revisions
