"""What a server reaches the world through. `wiring` makes the real ones, the simulator its own."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from nstance.clock import AnchoredClock, Rng
from nstance.model.ids import ClusterId, ProviderId, ShardId
from nstance.model.instance import Instance
from nstance.objects import journal, slots
from nstance.objects.port import ObjectStore
from nstance.providers.port import Instances, LoadBalancers
from nstance.secretstore.port import SecretStore
from nstance.server.cache.cache import Cache
from nstance.server.config.advertised import Advertised
from nstance.server.election.peers import Dialer
from nstance.server.election.term import Term
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.context import TermContext
from nstance.server.leader.history import Keeper
from nstance.server.state.commits import Committed
from nstance.server.state.instance_traces import InstanceTraces
from nstance.server.waits import WAITS, Waits
from nstance.telemetry.metrics import Metrics


class Port(Protocol):
    """A way in for agents or operators, open only while this server leads."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Abort every connection: nothing is answered any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Who else watches a server work."""

    term: Callable[[Term], AbstractContextManager[object]] = lambda term: contextlib.nullcontext()
    on_commit: Callable[[slots.Entry], None] = lambda entry: None  # an entry is queued for the journal
    on_committed: Callable[[Committed], None] = lambda committed: None  # it is durable


# From the load balancers of the cloud, if it has any, and the records of a term, to load balancers of all kinds.
OpenBalancers = Callable[[LoadBalancers | None, Callable[[], Mapping[ProviderId, Instance]]], LoadBalancers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    cluster: ClusterId
    shard: ShardId
    clock: AnchoredClock
    rng: Rng
    store: ObjectStore
    secret_store: SecretStore
    provider: Instances
    issuer: Issuer
    dialer: Dialer
    advertised: Advertised
    ports: Callable[[TermContext], Sequence[Port]]
    history: Keeper
    metrics: Metrics
    waits: Waits = WAITS
    traces: InstanceTraces | None = None  # if they are exported
    open_balancers: OpenBalancers | None = None  # None: only those of the provider
    journal_limits: journal.Limits = journal.LIMITS
    cache: Cache | None = None  # for what was learned from the provider
    watchdog: Callable[[Term, float], AbstractContextManager[object]] = lambda term, length: contextlib.nullcontext()
    observers: Observers = field(default_factory=Observers)
