"""What a shard is made of, and what it asks of the rest of the term."""

from collections.abc import Callable, Set
from dataclasses import dataclass

from nstance.clock import Clock
from nstance.model import decision as dec
from nstance.model.ids import GroupKey, IdMaker, InstanceId
from nstance.model.instance import Instance
from nstance.objects import journal_writer, slots
from nstance.server.election.term import Term
from nstance.server.state.commits import Commits
from nstance.server.state.event_log import EventLog
from nstance.server.state.inbox import Inbox
from nstance.server.state.shard_state import ShardState


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParts:
    """What a shard is made of. Other parts of the term use these before there is a shard."""

    term: Term
    state: ShardState
    inbox: Inbox
    commits: Commits
    event_log: EventLog
    clock: Clock
    ids: IdMaker

    @classmethod
    def make(
        cls,
        term: Term,
        writer: journal_writer.Writer,
        state: ShardState,
        *,
        clock: Clock,
        ids: IdMaker,
        on_commit: Callable[[slots.Entry], None] = lambda entry: None,
    ) -> "ShardParts":
        inbox = Inbox(state, clock)
        commits = Commits(writer, epoch=term.epoch, on_failure=inbox.fail, on_commit=on_commit)
        event_log = EventLog(commits, tenants=state.tenants, clock=clock)
        return cls(term=term, state=state, inbox=inbox, commits=commits, event_log=event_log, clock=clock, ids=ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHooks:
    """What a shard asks of the rest of the term."""

    complete_intent: Callable[[Instance], Instance]  # adds nonce and request hash
    start_effect: Callable[[dec.Effect, Instance, float], None]  # with the time at which its cause was posted
    last_seen: Callable[[InstanceId], float | None]  # on the monotonic clock; None: not connected
    crowded_subnets: Callable[[], Set[str]] = frozenset
    blocked_reason: Callable[[GroupKey], str] = lambda key: ""  # why its instances cannot be created now
    is_revision_stored: Callable[[GroupKey], bool] = lambda key: True
    find_fallback: Callable[[GroupKey], dec.Fallback | None] = lambda key: None
