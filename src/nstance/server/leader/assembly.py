"""Makes the parts of a term, each from those before it."""

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from nstance.model.actors import unnamed
from nstance.model.decision import ReasonCode
from nstance.model.group import Group
from nstance.model.ids import GroupKey, ProviderId, TenantId
from nstance.model.instance import Instance
from nstance.providers.port import Capabilities, LoadBalancer, capabilities_of
from nstance.server.cloud.balancer_sync import BalancerContext
from nstance.server.cloud.configured_balancers import configured_balancers
from nstance.server.cloud.effects import EffectContext, Effects
from nstance.server.cloud.inventory import InventoryReconciler
from nstance.server.cloud.leader_address import LeaderAddress
from nstance.server.cloud.load_balancers import LoadBalancers
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.server.config import group_changes
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.config.configuration import Configuration
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.agent_updates import AgentUpdates
from nstance.server.leader.blocked_groups import BlockedGroups
from nstance.server.leader.context import TermContext
from nstance.server.leader.earlier_revisions import EarlierRevisions
from nstance.server.leader.environment import Environment
from nstance.server.leader.fallbacks import Fallbacks
from nstance.server.leader.held_groups import HeldGroups
from nstance.server.leader.readiness import Readiness
from nstance.server.leader.revision_store import RevisionStore
from nstance.server.leader.step_times import StepTimes
from nstance.server.leader.supplies import Supplies
from nstance.server.leader.vm_requests import VmRequests
from nstance.server.liveness.connected_agents import ConnectedAgents
from nstance.server.state.event_log import EventLog
from nstance.server.state.shard import Shard
from nstance.server.state.shard_parts import ShardHooks, ShardParts
from nstance.server.workload.file_sets import FileSets

MAX_CONSOLE_BYTES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class TermWork:
    """The parts of a term that only the leader itself uses."""

    effects: Effects
    inventory: InventoryReconciler
    leader_address: LeaderAddress
    held_groups: HeldGroups
    earlier: EarlierRevisions

    def background(self, context: TermContext) -> list[Coroutine[Any, Any, None]]:
        return [
            self.leader_address.run(),
            context.supplies.subnets.run(),
            context.supplies.images.run(),
            context.supplies.userdata.run(),
            context.supplies.agent.run(),
            context.load_balancers.run(),
            context.revisions.run(),
            self.earlier.run(),
        ]


def assemble(
    env: Environment, active_config: ActiveConfig, parts: ShardParts, *, drainers: Iterable[TenantId]
) -> tuple[TermContext, TermWork]:
    """`drainers`: tenants that had one when the last term ended."""
    configuration, clock, state = active_config.configuration, env.clock, parts.state
    capabilities = capabilities_of(env.provider)
    agents = ConnectedAgents(parts.inbox.post, env.metrics.agents_connected, clock)
    calls = ProviderCalls(
        ready=parts.term.ready,
        clock=clock,
        rng=env.rng,
        metrics=env.metrics,
        waits=env.waits,
        settings=lambda: active_config.shard_settings,
        record_event=parts.event_log.record_for_all,
    )
    if capabilities.alarms is not None:
        capabilities.alarms.on_alarm(lambda problem: parts.event_log.record_for_all(ReasonCode.CREDENTIALS, problem))
    revisions = RevisionStore(parts, active_config, env.store, env.waits)
    earlier = EarlierRevisions(parts, active_config, revisions, env.waits)
    supplies = Supplies(env.provider, calls, active_config, earlier, store=env.store, cache=env.cache)
    vm_requests = VmRequests(active_config, earlier, supplies, env.issuer, parts, env.advertised)
    blocked_groups = BlockedGroups(active_config, supplies, vm_requests, inbox=parts.inbox, event_log=parts.event_log)
    fallbacks = Fallbacks(state.group_records, active_config, earlier, blocked_groups, parts.inbox)
    supplies.subscribe(fallbacks.update)
    balancers = capabilities.load_balancers
    if env.open_balancers is not None:
        balancers = env.open_balancers(balancers, lambda: _by_vm(state.instances.values()))
    load_balancers = LoadBalancers(
        BalancerContext(
            shard=parts,
            active_config=active_config,
            provider=balancers,
            clock=clock,
            calls=calls,
            cache=env.cache,
            drains_targets=env.provider.traits.drains_targets,
        )
    )
    effects = Effects(
        EffectContext(
            provider=env.provider,
            console=capabilities.console,
            calls=calls,
            clock=clock,
            metrics=env.metrics,
            settings=lambda: active_config.shard_settings,
            make_request=vm_requests.make,
            is_wanted=state.is_wanted,
            is_exhausted=lambda instance: shard.offers.is_exhausted(instance),
            post=parts.inbox.post,
            wait_deregistered=load_balancers.wait_deregistered,
            on_console_output=lambda instance, output: record_console_output(
                env.issuer, parts.event_log, instance, output
            ),
            traces=env.traces,
        )
    )
    shard = Shard(
        parts,
        ShardHooks(
            complete_intent=vm_requests.complete_intent,
            start_effect=effects.start,
            last_seen=agents.last_seen,
            crowded_subnets=lambda: supplies.subnets.crowded,
            blocked_reason=blocked_groups.reason,
            is_revision_stored=revisions.is_stored,
            find_fallback=fallbacks.find,
        ),
        policy=configuration.policy,
        groups_lost=configuration.dynamic_version is None,
        drainers=drainers,
    )
    load_balancers.configure(_load_balancers(configuration, capabilities))
    readiness = Readiness(shard, agents, vm_requests, on_ready=load_balancers.set_ready)
    held_groups = HeldGroups(shard)
    updates = AgentUpdates(state, agents, vm_requests)
    step_times = StepTimes(clock)
    earlier.subscribe(
        supplies.on_revision_read,
        readiness.update,
        updates.on_revision_read,
        lambda key: parts.inbox.look_again([key]),
    )
    active_config.subscribe(
        earlier.on_config_change,
        supplies.on_config_change,
        vm_requests.refresh,
        lambda change: _configure_shard(shard, change.after),
        held_groups.record,
        blocked_groups.update,
        lambda change: load_balancers.configure(_load_balancers(change.after, capabilities)),
        updates.on_config_change,
        lambda change: effects.on_configured(),
        readiness.on_config_change,
        revisions.update,
        lambda change: step_times.keep(set(change.after.groups)),
        lambda change: _record_changes(parts.event_log, change),
    )
    parts.commits.subscribe(
        step_times.observe, updates.on_committed, load_balancers.observe, env.observers.on_committed
    )
    context = TermContext(
        shard=shard,
        active_config=active_config,
        agents=agents,
        readiness=readiness,
        issuer=env.issuer,
        traces=env.traces,
        vm_requests=vm_requests,
        file_sets=FileSets(
            store=env.store,
            secret_store=env.secret_store,
            authority=lambda: env.issuer.authority,
            shard=env.shard,
            clock=clock,
            rng=env.rng,
            cache_ttl=configuration.settings.cluster.secrets.cache_ttl,
            count=env.metrics.certificate_issued,
            on_made=env.metrics.file_set_made,
        ),
        supplies=supplies,
        load_balancers=load_balancers,
        blocked_groups=blocked_groups,
        revisions=revisions,
        step_times=step_times,
        provider_rate=lambda: calls.rate,
    )
    work = TermWork(
        effects=effects,
        inventory=InventoryReconciler(
            shard,
            env.provider,
            cluster=env.cluster,
            name=env.shard,
            clock=clock,
            calls=calls,
            agent_addresses=agents.addresses,
            folder=capabilities.folder,
        ),
        leader_address=LeaderAddress(
            capabilities.leader_address,
            calls=calls,
            is_configured=lambda: active_config.shard_settings.leader_network is not None,
        ),
        held_groups=held_groups,
        earlier=earlier,
    )
    return context, work


def desired_groups(configuration: Configuration) -> dict[GroupKey, Group]:
    return {key: resolved.group for key, resolved in configuration.groups.items()}


def _configure_shard(shard: Shard, configuration: Configuration) -> None:
    groups_lost = configuration.dynamic_version is None
    shard.configure(desired_groups(configuration), configuration.policy, groups_lost=groups_lost)


def _load_balancers(configuration: Configuration, capabilities: Capabilities) -> list[LoadBalancer]:
    return configured_balancers(configuration.settings, of_cloud=capabilities.load_balancers is not None)


def _by_vm(instances: Iterable[Instance]) -> dict[ProviderId, Instance]:
    return {each.provider_id: each for each in instances if each.provider_id is not None}


def record_console_output(issuer: Issuer, event_log: EventLog, instance: Instance, output: str) -> None:
    """The end of the output of a VM whose agent never registered, without the registration nonce, for people."""
    if instance.nonce is not None:
        output = output.replace(issuer.token(instance), "[nonce]")
    text = unnamed("".join(c for c in output if c.isprintable() or c in "\n\t").strip())
    text = text.encode("utf-8", "replace")[-MAX_CONSOLE_BYTES:].decode("utf-8", "ignore")
    event_log.record(instance.key, ReasonCode.UNREGISTERED, f"last console output:\n{text}", instance.id)


def _record_changes(event_log: EventLog, change: ConfigChange) -> None:
    """The API records its own changes, with who made them."""
    if change.author:
        for key, text in group_changes.changes(change.before, change.after, lambda key: change.author):
            event_log.record(key, ReasonCode.CONFIG, text)
