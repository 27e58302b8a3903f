"""Which instances are ready, as their agents report it, and which checks agents run.

An assessment is posted to the shard when it changed; load balancers and watchers follow it at once. The trap: a new leader
knows nothing of agents that have not reconnected yet. Until they do, the journal counts: an instance that was ready before
is shown as ready, or each failover would make the whole fleet look broken.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field

from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.config.model.readiness import CheckSpec, CommandCheck, HttpCheck, SystemdCheck, TcpCheck
from nstance.config.resolve import Resolved
from nstance.core import readiness
from nstance.model.actors import unnamed
from nstance.model.decision import ReasonCode
from nstance.model.events import ReadinessUnknown, VmState
from nstance.model.ids import GroupKey, InstanceId
from nstance.model.instance import Instance, State
from nstance.server.config.active_config import ConfigChange
from nstance.server.leader.vm_requests import VmRequests
from nstance.server.liveness.connected_agents import ConnectedAgents, Presence
from nstance.server.state.shard import Shard
from nstance.server.workload import file_sets
from nstance.v1 import agent_pb2, operator_pb2

log = logging.getLogger(__name__)

MAX_MESSAGE = 500  # characters of an agent's own words
MAX_REASONS = 5  # that are shown of a group
MAX_RECORDED = 100  # reasons of a group that become events before it has recovered
PUSH_SECONDS = 10.0
NOT_RUNNING = frozenset({VmState.DOWN, VmState.DELETED})


@dataclass(eq=False)
class Readiness:
    """Of all instances of a shard, during one term."""

    shard: Shard
    agents: ConnectedAgents
    vm_requests: VmRequests
    _: KW_ONLY
    on_ready: Callable[[InstanceId, bool], None]  # whether an instance is ready, before any subscriber learns of it
    _subscribers: list[Callable[[InstanceId], None]] = field(default_factory=list)
    _configs: dict[str, agent_pb2.CheckConfig] = field(default_factory=dict)  # by hash
    _recorded: dict[GroupKey, set[str]] = field(default_factory=dict)  # why groups are blocked, as the event log has it
    _pushing: set[asyncio.Task[None]] = field(default_factory=set)

    def subscribe(self, subscriber: Callable[[InstanceId], None]) -> None:
        """It is called when the readiness of an instance may have changed."""
        self._subscribers.append(subscriber)

    # ---- what agents report

    def assess(self, presence: Presence) -> None:
        """Post what the last report says about readiness, if it changed."""
        report = presence.report
        instance = self.shard.instances.get(presence.id)
        if report is None or instance is None or not presence.healthy:
            return
        if self.vm_requests.is_being_read(instance):
            facts = self.shard.facts.get(instance.id)
            if instance.ready_at is None and not (facts is not None and facts.agent.blocked):
                self.shard.post(ReadinessUnknown(instance.id))  # or it would be given up for not becoming ready in time
            return  # until then it is shown as the journal has it
        resolved = self.vm_requests.resolve(instance)
        if not presence.wanted_hash and resolved is not None:
            presence.wanted_hash = file_sets.set_hash(self.vm_requests.context, resolved, instance)
        knows_readiness = report.HasField("received_hash")
        problem = "" if report.received_hash else report.files_error
        if not knows_readiness and resolved is not None and resolved.checks:
            problem = f"its agent of version {report.version} does not run checks"
        found = readiness.assess(
            presence.id,
            readiness.FileStatus(
                desired_hash=presence.wanted_hash,
                installed_hash=report.received_hash if knows_readiness else report.config_hash,
                blocked=presence.blocked,
                problem=_plain(problem),
            ),
            checks=resolved.checks if resolved is not None else (),
            results={each.name: each.passing for each in _results(resolved, report)},
        )
        if found == presence.readiness:
            return
        presence.readiness = found
        self.shard.post(found)
        self.on_ready(presence.id, found.ready)
        self._notify(presence.id)

    def disconnected(self, presence: Presence) -> None:
        self.on_ready(presence.id, False)
        self._notify(presence.id)

    def set_wanted(self, presence: Presence, wanted_hash: str) -> None:
        """The hash of the file set that it should have."""
        if presence.wanted_hash != wanted_hash:
            presence.wanted_hash = wanted_hash
            self.assess(presence)

    def _notify(self, id: InstanceId) -> None:
        for subscriber in self._subscribers:
            subscriber(id)

    # ---- file sets that cannot be rendered

    def block(self, presence: Presence, problem: str) -> None:
        """Its file set cannot be rendered: it keeps the one that it has."""
        problem = _plain(problem)
        if presence.blocked == problem:
            return
        presence.blocked = problem
        self.assess(presence)
        instance = self.shard.instances.get(presence.id)
        if instance is None:
            return
        recorded = self._recorded.setdefault(instance.key, set())
        if problem not in recorded and len(recorded) < MAX_RECORDED:
            recorded.add(problem)
            message = f"files cannot be rendered, instances keep what they have: {problem}"
            log.warning(message, extra={"group": str(instance.key), "instance": instance.id})
            self.shard.event_log.record(instance.key, ReasonCode.BLOCKED, message, instance.id)

    def unblock(self, presence: Presence) -> None:
        if not presence.blocked:
            return
        presence.blocked = ""
        self.assess(presence)
        instance = self.shard.instances.get(presence.id)
        if instance is not None and not self.blocked(instance.key) and instance.key in self._recorded:
            del self._recorded[instance.key]
            self.shard.event_log.record(instance.key, ReasonCode.RECOVERED, "files can be rendered again")

    def blocked(self, key: GroupKey) -> list[str]:
        """Why files of the group's instances cannot be rendered: each reason once."""
        present = (self.agents.get(id) for id in self.shard.members(key))
        reasons = dict.fromkeys(each.blocked for each in present if each is not None and each.blocked)
        return list(reasons)[:MAX_REASONS]

    # ---- what is shown

    def is_ready(self, instance: Instance) -> bool:
        return instance.state is State.RUNNING and not self.why_not(instance)

    def why_not(self, instance: Instance) -> str:
        """Why a running instance is not ready; empty if it is."""
        facts = self.shard.facts.get(instance.id)
        if facts is not None and facts.vm.state in NOT_RUNNING:
            return f"its VM is {facts.vm.state.value}"
        if instance.suspect:
            return "its agent is unresponsive"
        presence = self.agents.get(instance.id)
        connected = presence is not None and presence.healthy
        if presence is not None and connected and presence.readiness is not None:
            return readiness.explain(presence.readiness)
        if instance.ready_at is not None and not self.agents.has_left(instance.id):
            return ""  # it has not reconnected to this leader yet
        return "its agent has not reported yet" if connected else "its agent is not connected"

    def checks(self, instance: Instance) -> list[operator_pb2.CheckStatus]:
        resolved = self.vm_requests.resolve(instance)
        presence = self.agents.get(instance.id)
        if resolved is None or presence is None or presence.report is None:
            return []
        results = {each.name: each for each in _results(resolved, presence.report)}
        shown = []
        for name in sorted(resolved.checks):
            result = results.get(name)
            if result is None:
                shown.append(operator_pb2.CheckStatus(name=name, message="no result yet"))
            else:
                shown.append(
                    operator_pb2.CheckStatus(
                        name=name,
                        passing=result.passing,
                        message=_plain(result.message),
                        since_unix_ms=result.since_unix_ms,
                    )
                )
        return shown

    # ---- the checks that agents run

    def checks_to_send(self, presence: Presence) -> agent_pb2.CheckConfig | None:
        """The checks for the next answer on its health stream; None if it has them, or was sent them already."""
        resolved = self._with_other_checks(presence)
        if resolved is None:
            return None
        presence.checks_sent = resolved.checks_hash
        config = self._configs.get(resolved.checks_hash)
        if config is None:
            config = self._configs[resolved.checks_hash] = check_config(resolved)
        return config

    def _with_other_checks(self, presence: Presence) -> Resolved | None:
        """Its group, if it has other checks than the agent was sent."""
        instance = self.shard.instances.get(presence.id)
        resolved = self.vm_requests.resolve(instance) if instance is not None else None
        known = presence.checks_sent
        if known is None:
            known = presence.report.checks_hash if presence.report is not None else ""
        return resolved if resolved is not None and resolved.checks_hash != known else None

    def on_config_change(self, change: ConfigChange) -> None:
        """Agents whose files or checks the new configuration changes are not ready until they have them. Those of an earlier
        revision are not among them."""
        groups = change.after.groups
        self._configs.clear()
        for key in [key for key in self._recorded if key not in groups]:
            del self._recorded[key]
        for key, resolved in groups.items():
            old = change.before.groups.get(key)
            if old is not None and old is not resolved and old.group.parts_hash != resolved.group.parts_hash:
                self.update(key)

    def update(self, key: GroupKey) -> None:
        """The files or checks of some of the group's instances may have changed."""
        for id in self.shard.members(key):
            presence = self.agents.get(id)
            if presence is None:
                continue
            presence.wanted_hash = ""  # worked out again
            self.assess(presence)
            if presence.push is not None and self._with_other_checks(presence) is not None:
                task = asyncio.create_task(self._push(presence, presence.push))
                self._pushing.add(task)
                task.add_done_callback(self._pushing.discard)

    async def _push(self, presence: Presence, push: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(PUSH_SECONDS):
                await push()
        except (OSError, TimeoutError, GRPCError, StreamTerminatedError, ProtocolError) as problem:
            # Its connection ends, or stalls and is aborted; the next one starts with the checks.
            log.debug("failed to push checks", extra={"instance": presence.id, "error": str(problem)})


def check_config(resolved: Resolved) -> agent_pb2.CheckConfig:
    """A group's checks in the format that agents get."""
    checks = [_check(name, spec) for name, spec in sorted(resolved.checks.items())]
    return agent_pb2.CheckConfig(hash=resolved.checks_hash, checks=checks)


def _check(name: str, spec: CheckSpec) -> agent_pb2.Check:
    made = agent_pb2.Check(
        name=name,
        interval_ms=int(spec.interval * 1000),
        timeout_ms=max(1, int(spec.timeout * 1000)),
        failures=spec.failures,
        successes=spec.successes,
        start_period_ms=int(spec.start_period * 1000),
    )
    match spec:
        case HttpCheck():
            made.http.CopyFrom(agent_pb2.HttpCheck(port=spec.port, path=spec.path, tls=spec.tls))
        case TcpCheck():
            made.tcp.port = spec.port
        case CommandCheck():
            made.command.argv[:] = spec.argv
        case SystemdCheck():
            made.systemd.unit = spec.unit
    return made


def _results(resolved: Resolved | None, report: agent_pb2.HealthReport) -> Iterable[agent_pb2.CheckResult]:
    """Results of the group's current checks."""
    return report.checks if resolved is not None and report.checks_hash == resolved.checks_hash else ()


def _plain(text: str) -> str:
    """Foreign text, shortened and without terminal control characters."""
    return unnamed("".join(c if c.isprintable() else " " for c in text[:MAX_MESSAGE]))
