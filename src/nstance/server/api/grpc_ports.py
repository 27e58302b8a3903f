"""The gRPC ports of a leader."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nstance.authority.operators import Operators
from nstance.clock import Clock, Rng
from nstance.config.addresses import Address, Endpoints, Service
from nstance.model.ids import ClusterId, ServerId
from nstance.objects.port import ObjectStore
from nstance.pki import names
from nstance.server.api.admission import Admission
from nstance.server.api.agent_service import AgentService
from nstance.server.api.control_plane import ControlPlaneSources, ControlPlaneStatus
from nstance.server.api.group_writer import GroupWriter
from nstance.server.api.operator_service import OperatorContext, OperatorService
from nstance.server.api.registrar import Registrar, RegistrationService
from nstance.server.api.rollout_requests import RolloutRequests
from nstance.server.api.statuses import Statuses
from nstance.server.api.watchers import Watchers
from nstance.server.cache.cache import Cache
from nstance.server.config.advertised import Advertised
from nstance.server.config.configuration import Configuration
from nstance.server.identity.rejected_peers import RejectedPeers
from nstance.server.leader.context import TermContext
from nstance.server.state.committed_records import CommittedRecords
from nstance.server.waits import Waits
from nstance.telemetry.metrics import Metrics
from nstance.wire import limits
from nstance.wire.dispatch import Table, methods_of
from nstance.wire.listener import Listener

log = logging.getLogger(__name__)

SERVICES = {
    Service.REGISTRATION: "nstance.v1.RegistrationService",
    Service.OPERATOR: "nstance.v1.OperatorService",
    Service.AGENT: "nstance.v1.AgentService",
}


@dataclass(frozen=True, slots=True)
class GrpcPort:
    listener: Listener
    bind: Address

    async def open(self) -> None:
        await self.listener.start(self.bind.host, self.bind.port)

    async def close(self) -> None:
        await self.listener.close()


@dataclass(slots=True)
class OperatorPort:
    """The operators' port and the tasks that write their groups."""

    grpc: GrpcPort
    groups: GroupWriter
    rollouts: RolloutRequests
    watchers: Watchers
    _tasks: "list[asyncio.Task[None]]" = field(default_factory=list)

    async def open(self) -> None:
        await self.grpc.open()
        self._tasks = [asyncio.create_task(work) for work in (self.groups.run(), self.rollouts.run())]

    async def close(self) -> None:
        self.watchers.close()
        for task in self._tasks:
            task.cancel()
        await self.grpc.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What the API has, whether this server leads or not."""

    server: ServerId
    cluster: ClusterId
    endpoints: Endpoints
    advertised: Advertised
    tls: Callable[[bool], ssl.SSLContext]  # for each connection; True: with client certificates
    store: ObjectStore
    cache: Cache
    operators: Operators
    metrics: Metrics
    waits: Waits
    clock: Clock
    rng: Rng
    standbys: Callable[[], Mapping[str, float]]  # how many seconds ago each one answered
    storage_failed_at: Callable[[], float]  # by wall time; 0: no request has failed


def grpc_ports(term: TermContext, api: ApiContext) -> list[GrpcPort | OperatorPort]:
    rejected = RejectedPeers(term.shard, api.clock)
    elsewhere = {name: f"port {api.endpoints.bind[service].port}" for service, name in SERVICES.items()}

    def port(service: Service, handler: Any, bounds: limits.Limits, role: names.Role | None) -> GrpcPort:
        listener = Listener(
            Table(
                methods=methods_of([handler]),
                limits=bounds,
                role=role,
                cluster=api.cluster if role is not None else None,
                other_services={name: where for name, where in elsewhere.items() if name != SERVICES[service]},
                on_rejected_peer=rejected.on_reject,
            ),
            context=lambda: api.tls(role is not None),
            clock=api.clock,
            on_refused=lambda reason: log.debug("connection rejected", extra={"reason": reason}),
        )
        return GrpcPort(listener, api.endpoints.bind[service])

    # Before the first decision, the shard's state is what the journal has.
    records = CommittedRecords(term.shard.instances)
    statuses = Statuses(term, term.blocked_groups, records, api.cache, api.clock)
    watchers = Watchers(term.active_config, records, statuses, api.waits)
    groups = GroupWriter(term.shard, term.active_config, store=api.store, clock=api.clock, rng=api.rng)
    rollouts = RolloutRequests(term.shard, term.active_config, term.revisions, groups, api.clock)
    term.shard.commits.subscribe(records.observe, watchers.observe, rollouts.observe)
    term.shard.commits.subscribe_slots(watchers.on_slot)
    term.active_config.subscribe(watchers.on_config_change, rollouts.on_config_change)
    term.readiness.subscribe(watchers.on_readiness_change)
    admission = Admission(
        api.operators, api.clock, connections=lambda: operator_port.listener.connections, waits=api.waits
    )
    sources = ControlPlaneSources(
        metrics=api.metrics,
        standbys=api.standbys,
        provider_rate=term.provider_rate,
        alarms=lambda: term.shard.alarms.messages,
        storage_failed_at=api.storage_failed_at,
    )
    operator_service = OperatorService(
        OperatorContext(
            server=api.server,
            shard=term.shard,
            active_config=term.active_config,
            issuer=term.issuer,
            store=api.store,
            events=api.cache.events,
            operators=api.operators,
            admission=admission,
            groups=groups,
            rollouts=rollouts,
            step_times=term.step_times,
            records=records,
            statuses=statuses,
            watchers=watchers,
            control_plane=ControlPlaneStatus(api.server, term.shard.term.epoch, sources, api.clock),
            clock=api.clock,
        )
    )
    operator_port = port(Service.OPERATOR, operator_service, limits.OPERATOR, names.Role.OPERATOR)
    registrar = Registrar(term, api.operators, api.advertised, api.metrics, api.clock)
    agent_service = AgentService(term, term.vm_requests, term.file_sets, api.cache, api.clock, api.waits)
    return [
        OperatorPort(operator_port, groups, rollouts, watchers),
        port(Service.REGISTRATION, RegistrationService(registrar), limits.REGISTRATION, None),
        port(Service.AGENT, agent_service, _agent_limits(term.configuration), names.Role.AGENT),
    ]


def _agent_limits(configuration: Configuration) -> limits.Limits:
    """Agents are pinged well before they could become suspect."""
    half = configuration.policy.suspect_after / 2
    return replace(
        limits.AGENT,
        ping_after=min(limits.AGENT.ping_after, half),
        pong_within=min(limits.AGENT.pong_within, half),
    )
