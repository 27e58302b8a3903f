"""How the cloud in memory behaves: what a test or the simulator decides about each call and each VM.

The trap that all of this is for: applied and answered are two things. A call may be applied and its answer lost, answered
and applied a minute later, or answered with success and never applied.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from nstance.model.ids import InstanceId
from nstance.providers import errors, port


class Call(Enum):
    CREATE = "create"
    DELETE = "delete"
    GET = "get"
    LIST = "list"
    CONSOLE = "console"
    SUBNET_CAPACITY = "subnet-capacity"
    FIND_IMAGE = "find-image"
    ASSIGN_LEADER_NETWORK = "assign-leader-network"
    RELEASE_LEADER_NETWORK = "release-leader-network"
    LOAD_BALANCER_MEMBERS = "load-balancer-members"
    LOAD_BALANCER_REGISTER = "load-balancer-register"
    LOAD_BALANCER_DEREGISTER = "load-balancer-deregister"


CHANGES = frozenset(
    {Call.CREATE, Call.DELETE, Call.ASSIGN_LEADER_NETWORK, Call.RELEASE_LEADER_NETWORK}
    | {Call.LOAD_BALANCER_REGISTER, Call.LOAD_BALANCER_DEREGISTER}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one call. Cancelling the caller does not stop a sent call from being applied."""

    before: float = 0.0  # seconds until it is applied
    after: float = 0.0  # seconds from there to the answer
    late: float = 0.0  # applied this long after `before`, whatever the answer was
    applied: bool = True  # False without an error: a delete that reports success and does nothing
    error: errors.ProviderError | None = None  # the answer, if it is not the result
    first: int | None = None  # a listing silently shows only so many VMs: against the contract, but real

    def __post_init__(self) -> None:
        if self.late and self.error is None:
            raise ValueError("expected an error with a late outcome, found none: there is no result to return yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Durations in one VM's life, in seconds. A lag shows the VM as it was so long ago."""

    boot: float = 0.0  # pending, then running
    dying: float = 0.0  # how long it runs on after a delete
    linger: float = 0.0  # how long it is shown as deleted
    get_lag: float = 0.0
    list_lag: float = 0.0


class Behavior(Protocol):
    def outcome(self, call: Call, id: InstanceId | None) -> Outcome: ...

    def life(self, request: port.CreateRequest) -> Life: ...


@dataclass(slots=True)
class Script:
    """The usual outcome, except for those queued with `then`."""

    usual: Outcome = field(default_factory=Outcome)
    lives: Life = field(default_factory=Life)
    _queued: Mapping[Call, deque[Outcome]] = field(default_factory=lambda: defaultdict(deque), repr=False)

    def then(self, call: Call, *outcomes: Outcome) -> None:
        """Outcomes of the next calls of this kind, in order."""
        self._queued[call].extend(outcomes)

    def outcome(self, call: Call, id: InstanceId | None) -> Outcome:
        queued = self._queued[call]
        return queued.popleft() if queued else self.usual

    def life(self, request: port.CreateRequest) -> Life:
        return self.lives
