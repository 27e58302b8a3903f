"""Which members of a group need a closer look in this decision.

In a large group almost all members are healthy, starting in time, or ended and kept for a while; only time or an event
can change that. Every step of a decision would look at them in vain, so they are counted here once and skipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from nstance.model.events import VmState
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, State
from nstance.model.observation import AgentObservation, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The times and settings that members are compared with."""

    now: float
    infra_hash: str | None
    drain_timeout: float | None
    suspect_after: float
    max_age: float
    registration_timeout: float
    ready_timeout: float
    unhealthy_after: float
    deleted_retention: float
    listening_since: float  # when this term began to accept agents
    reconnect_until: float  # until then agents may still be reconnecting to a new leader


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    needs_attention: list[Instance]
    outdated: list[Instance]  # these, and the healthy ones of another revision
    # Of the members that are skipped: how many have a VM, are ready, are ready and current, reported that they are not.
    existing: int
    ready: int
    ready_and_current: int
    unready: int
    # When the first skipped member of each kind needs a look again.
    healthy_until: float
    unready_until: float
    starting_until: float
    retained_until: float


def sort_members(
    members: Mapping[InstanceId, Instance],
    learned: Mapping[InstanceId, Observation],
    known: Mapping[InstanceId, Observation],
    unknown: Observation,
    limits: Limits,
) -> Triage:
    """This loop runs over thousands of members for every event, so it avoids calls and looks attributes up once."""
    now, current, drain_timeout = limits.now, limits.infra_hash, limits.drain_timeout
    suspect_after, max_age, retention = limits.suspect_after, limits.max_age, limits.deleted_retention
    registration_timeout = limits.registration_timeout
    running, starting, pending = State.RUNNING, State.STARTING, State.PENDING
    vm_running, vm_unknown = VmState.RUNNING, VmState.UNKNOWN
    first_seen = first_created = first_starting = first_ended = first_unready = inf
    count_ready = count_ready_outdated = count_unready = count_reported_unready = count_starting = 0
    needs_attention: list[Instance] = []
    outdated: list[Instance] = []
    for id, member in members.items():
        ended = member.ended
        if ended is not None and now < ended + retention and is_ended(member) and not member.vacant:
            if ended < first_ended:
                first_ended = ended
            continue
        observed = learned.get(id) or known.get(id, unknown)
        agent, vm_state = observed.agent, observed.vm.state
        if (
            (vm_state is vm_running or vm_state is vm_unknown)
            and agent.notice is None
            and observed.calls.check_due is None
            and not (member.suspect or member.on_demand or member.replace_wanted)
            and member.duplicate_vm is None
        ):
            state, created = member.state, member.created
            if state is running:
                last_seen, ready = agent.last_seen, agent.ready
                if (
                    agent.connected
                    and member.drain_timeout == drain_timeout
                    and now < last_seen + suspect_after
                    and now < created + max_age
                    and (ready or now < (due := unready_deadline(member, agent, limits)))
                ):
                    if last_seen < first_seen:
                        first_seen = last_seen
                    if created < first_created:
                        first_created = created
                    if member.infra_hash != current:
                        outdated.append(member)
                        count_ready_outdated += ready and bool(
                            member.infra_hash
                        )  # an unknown revision counts as current
                    if ready:
                        count_ready += 1
                    else:
                        first_unready = min(first_unready, due)
                        count_unready += 1
                        count_reported_unready += bool(agent.not_ready)
                    continue
            elif (
                state is starting or (state is pending and observed.calls.creating)
            ) and now < created + registration_timeout:
                if created < first_starting:
                    first_starting = created
                count_starting += 1
                continue
        needs_attention.append(member)
        outdated.append(member)
    return Triage(
        needs_attention=needs_attention,
        outdated=outdated,
        existing=count_ready + count_unready + count_starting,
        ready=count_ready,
        ready_and_current=count_ready - count_ready_outdated,
        unready=count_reported_unready,
        healthy_until=min(first_seen + suspect_after, first_created + max_age),
        unready_until=first_unready,
        starting_until=first_starting + registration_timeout,
        retained_until=first_ended + retention,
    )


def unready_deadline(member: Instance, agent: AgentObservation, limits: Limits) -> float:
    """When a running instance that is not ready becomes unhealthy if nothing changes."""
    due = inf if agent.failing_since is None else agent.failing_since + limits.unhealthy_after
    if member.ready_at is None and member.registered is not None:
        timeout = max(member.registered, agent.unblocked_at) + limits.ready_timeout
        # It may have become ready and not been able to report it: after a change of leaders or a lost connection.
        if member.registered < limits.listening_since:
            timeout = max(timeout, limits.reconnect_until)
        absence = max(0.0, agent.connected_since - member.registered)  # next to nothing for a first connection
        due = min(due, max(timeout, agent.connected_since + min(limits.suspect_after, absence)))
    return due


def is_ended(instance: Instance) -> bool:
    return instance.state is State.DELETED or instance.state is State.FAILED
