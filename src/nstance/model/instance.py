"""An instance: the record that the journal keeps, and the states it moves through.

A record holds what a new leader needs and cannot ask for. It holds no secret and no token: the nonce's claims are
stored, because signing the same claims again gives the same token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from nstance.model.ids import GroupKey, GroupName, InstanceId, ProviderId, TenantId


class State(Enum):
    PENDING = "pending"  # the intent is in the journal, the provider is being asked
    STARTING = "starting"  # the VM exists
    RUNNING = "running"  # its agent has registered
    DRAINING = "draining"  # it will be deleted; its workloads may leave first
    DELETING = "deleting"  # the tombstone: from here on the provider may be told to delete it
    DELETED = "deleted"  # the provider confirmed the end; the record is kept for a while, then removed
    FAILED = "failed"  # the provider refused to create it; there is no VM


# The allowed transitions. Any other one is a bug.
TRANSITIONS: Mapping[State, frozenset[State]] = {
    # RUNNING straight from PENDING: the agent may register before the provider's answer reaches us.
    State.PENDING: frozenset({State.STARTING, State.RUNNING, State.DELETING, State.FAILED}),
    # A VM that never registered has nothing to drain.
    State.STARTING: frozenset({State.RUNNING, State.DELETING, State.FAILED}),
    # Straight to DELETING only where nothing can be drained: the VM is gone, or the drain timeout is 0.
    State.RUNNING: frozenset({State.DRAINING, State.DELETING}),
    # Back to RUNNING: the drain was cancelled (the agent reconnected, or the group grew again).
    State.DRAINING: frozenset({State.RUNNING, State.DELETING}),
    # A tombstone is never taken back.
    State.DELETING: frozenset({State.DELETED}),
    # Back to DELETING: a VM with that ID appeared after all.
    State.DELETED: frozenset({State.DELETING}),
    State.FAILED: frozenset({State.DELETING}),
}


def reachable(state: State) -> set[State]:
    """States that several allowed steps in one decision lead to, and itself."""
    reached, queue = {state}, [state]
    while queue:
        for following in TRANSITIONS[queue.pop()] - reached:
            reached.add(following)
            queue.append(following)
    return reached


CAPACITY = frozenset({State.PENDING, State.STARTING, State.RUNNING})
ENDED = frozenset({State.DELETED, State.FAILED})


class Cause(Enum):
    """Why an instance is removed. Operators see the first ten."""

    UNHEALTHY = "unhealthy"
    GONE = "gone"
    SPOT = "spot-termination"
    SHUTDOWN = "shutdown"
    DRIFT = "config-drift"
    FORCED_EXPIRY = "forced-expiry"
    ELIGIBLE_EXPIRY = "eligible-expiry"
    ONDEMAND_EXPIRY = "ondemand-expiry"
    SCALE_DOWN = "scale-down"
    REQUESTED = "requested"
    UNREGISTERED = "unregistered"  # its agent did not register in time
    SUPERSEDED = "superseded"  # a replacement that is no longer needed
    ORPHAN = "orphan"  # a VM with our tags and without a record
    REFUSED = "refused"  # the provider will not create it
    PREFERENCE = "preferred-offer"  # a better market or instance type has capacity again


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Decided once, when the drain starts, and stored: a new leader continues it instead of starting over."""

    started: float
    cause: Cause
    deadline: float
    waits: bool  # for an operator's acknowledgement; False if that came while the group was paused


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonce:
    """The claims that make an instance's registration nonce reproducible. Not the token."""

    jti: str
    issued: int
    expires: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    id: InstanceId
    tenant: TenantId
    group: GroupName
    state: State
    created: float  # when the intent was written
    on_demand: bool = False
    replaces: InstanceId | None = None  # the instance whose place this one will take, while both exist
    replaces_for: Cause | None = None  # and why
    predecessor: InstanceId | None = None  # whose place it fills: that one was gone before this one was created
    vacant: bool = False  # it left a place that the group wants filled, and nothing was created for that yet
    replace_wanted: bool = False  # its replacement was requested
    removal_rank: int | None = None  # chosen to leave when the group shrinks, lowest first; None: not chosen
    suspect: bool = False  # its agent is unresponsive although its VM runs; a mark, not a state
    template: str = ""
    # The offer in which it is created: another one if the provider had no capacity in the first.
    market: str = ""
    instance_type: str = ""
    subnet: str = ""
    own_type: bool = False  # its instance type was requested: it is created with no other
    vars: Mapping[str, str] = field(default_factory=dict)  # of an on-demand request
    requester: str = ""  # on whose behalf an on-demand instance was requested
    infra_hash: str = ""
    request_hash: str = ""  # of the rendered create request
    nonce: Nonce | None = None
    provider_id: ProviderId | None = None
    seen: bool = False  # the provider has shown this VM at least once, so "not found" means something
    made: float | None = None  # when the VM was first known to exist; None also for providers whose answers never lag
    duplicate_vm: ProviderId | None = None  # a second VM with this ID; this field is its tombstone
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""
    registered: float | None = None
    ready_at: float | None = None  # when it first became ready
    public_key: str = ""  # base64 of the 32 raw bytes
    certificate_serial: str = ""  # hexadecimal
    certificate_expires: float | None = None
    drain_timeout: float | None = None  # its group's, needed once that is deleted; None: the shard's default
    drain: Drain | None = None
    cause: Cause | None = None  # why it is deleting, deleted or failed
    message: str = ""  # the same as a sentence
    ended: float | None = None  # when it became deleted or failed

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.tenant, self.group)

    @property
    def counts(self) -> bool:
        """Whether it is part of its group's capacity."""
        return self.state in CAPACITY and not self.on_demand


@dataclass(frozen=True, slots=True)
class Put:
    """The new content of a record."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Remove:
    """The record is dropped: its retention is over."""

    id: InstanceId


Change = Put | Remove
