"""The gRPC ports of a leader."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nstance.authority.operators import Operators
from nstance.clock import Clock, Rng
from nstance.config.addresses import Address, Endpoints, Service, show
from nstance.model.ids import ClusterId, ServerId
from nstance.objects.port import ObjectStore
from nstance.pki import names
from nstance.server.api.admission import Admission
from nstance.server.api.agent_service import AgentService
from nstance.server.api.group_writer import GroupWriter
from nstance.server.api.instance_requests import InstanceRequests
from nstance.server.api.operator_service import Events, OperatorService
from nstance.server.api.registrar import Registrar
from nstance.server.api.registration_service import RegistrationService
from nstance.server.api.rollout_requests import RolloutRequests
from nstance.server.api.statuses import Statuses
from nstance.server.api.tenancy import Tenancy
from nstance.server.api.watchers import Watchers
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration
from nstance.server.identity.rejected_peers import RejectedPeers
from nstance.server.leader.context import Advertised, TermContext
from nstance.server.state.committed_records import CommittedRecords
from nstance.wire import limits
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


def grpc_ports(
    lead: TermContext,
    *,
    active_config: ActiveConfig,
    server: ServerId,
    store: ObjectStore,
    events: Events,
    endpoints: Endpoints,
    context: Callable[[bool], ssl.SSLContext],
    cluster: ClusterId,
    operators: Operators,
    clock: Clock,
    rng: Rng,
) -> list[GrpcPort | OperatorPort]:
    """`context` is called for each connection; True means with client certificates."""
    rejected = RejectedPeers(lambda: lead.shard, clock)
    elsewhere = {name: f"port {endpoints.bind[service].port}" for service, name in SERVICES.items()}

    def port(service: Service, api: Any, bounds: limits.Limits, role: names.Role | None) -> GrpcPort:
        listener = Listener(
            [api],
            context=lambda: context(role is not None),
            limits=bounds,
            clock=clock,
            role=role,
            cluster=cluster if role is not None else None,
            other_services=_others(elsewhere, SERVICES[service]),
            on_refused=lambda reason: log.debug("connection rejected", extra={"reason": reason}),
            on_unwelcome=rejected.on_reject,
        )
        return GrpcPort(listener, endpoints.bind[service])

    # Before the first decision, the shard's state is what the journal has.
    records = CommittedRecords(lead.shard.instances)
    statuses = Statuses(lead, records, clock)
    watchers = Watchers(lead, records, statuses)
    lead.shard.observers += [records.observe, watchers.observe]
    lead.on_configured.append(watchers.configured)
    lead.readiness.on_change.append(watchers.on_readiness_change)
    groups = GroupWriter(
        lead, store=store, changing=active_config.changing, take=active_config.take, clock=clock, rng=rng
    )
    rollouts = RolloutRequests(lead, groups, clock)
    lead.shard.observers.append(rollouts.observe)
    lead.on_configured.append(rollouts.configured)
    admission = Admission(operators, clock)
    operator_api = OperatorService(
        lead,
        active_config=active_config,
        server=server,
        store=store,
        events=events,
        operators=operators,
        admission=admission,
        groups=groups,
        rollouts=rollouts,
        requests=InstanceRequests(lead, records),
        statuses=statuses,
        watchers=watchers,
        tenancy=lambda who: Tenancy(who, lead, records),
        clock=clock,
    )
    operator_port = port(Service.OPERATOR, operator_api, limits.OPERATOR, names.Role.OPERATOR)
    admission.connections = lambda: operator_port.listener.connections
    registrar = Registrar(lead, operators, clock)
    return [
        OperatorPort(operator_port, groups, rollouts, watchers),
        port(Service.REGISTRATION, RegistrationService(registrar), limits.REGISTRATION, None),
        port(Service.AGENT, AgentService(lead, clock, rng), _agent_limits(lead.configuration), names.Role.AGENT),
    ]


def _others(services: Mapping[str, str], own: str) -> dict[str, str]:
    return {name: where for name, where in services.items() if name != own}


def _agent_limits(configuration: Configuration) -> limits.Limits:
    """Agents are pinged well before they could become suspect."""
    half = configuration.policy.suspect_after / 2
    return replace(
        limits.AGENT,
        ping_after=min(limits.AGENT.ping_after, half),
        pong_within=min(limits.AGENT.pong_within, half),
    )


def advertised(endpoints: Endpoints) -> Advertised:
    hosts = {address.host for addresses in endpoints.advertise.values() for address in addresses}
    return Advertised(
        registration=show(endpoints.advertise[Service.REGISTRATION]),
        agent=show(endpoints.advertise[Service.AGENT]),
        operator=show(endpoints.advertise[Service.OPERATOR]),
        # Servers and agents on the same machine share loopback addresses.
        hosts=frozenset(h for h in hosts if not h.startswith("127.") and h not in ("::1", "localhost")),
    )
