"""AgentService: the API for agents. An agent speaks only for the instance in its certificate.

The service authenticates, translates, posts events and reads snapshots; it decides nothing. The trap: reports may arrive
twice or out of order, so only a higher sequence of the same boot counts.
"""

import asyncio
import logging
import math
from typing import Any

from grpclib.exceptions import GRPCError

from nstance.clock import Clock
from nstance.config.resolve import Resolved
from nstance.model import events as ev
from nstance.model.actors import unnamed
from nstance.model.decision import ReasonCode
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, State
from nstance.pki import keys, names
from nstance.server.api import asking
from nstance.server.api.registrar import certificate_response, renewed_key
from nstance.server.cache.cache import Cache
from nstance.server.identity.restored_agents import recognize_agent
from nstance.server.leader.context import ShardContext
from nstance.server.leader.vm_requests import VmRequests
from nstance.server.liveness import clones as clones_of
from nstance.server.liveness.connected_agents import Presence
from nstance.server.waits import WAITS, Waits
from nstance.server.workload import file_sets
from nstance.server.workload.file_sets import FileSet, FileSetError, FileSets
from nstance.tasks import background
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import status
from nstance.wire.peer import Connection, connection_of

log = logging.getLogger(__name__)

ADMITTED = frozenset({State.RUNNING, State.DRAINING})
RECONNECTS_PER_SECOND = 300
ABORT_DELAY_SECONDS = 1.0  # after an error, so that the agent receives it
FRESH_FRACTION = 0.1  # of a certificate's life, in which a renewal returns the same one
MAX_KEYS = 256
MAX_CHECKS = 64  # in a report: more than an agent runs
NOTICES = {
    agent_pb2.Notice.SPOT_TERMINATION: ev.NoticeKind.SPOT,
    agent_pb2.Notice.SPOT_REBALANCE: ev.NoticeKind.REBALANCE,
    agent_pb2.Notice.SHUTDOWN: ev.NoticeKind.SHUTDOWN,
}


class AgentService(agent_grpc.AgentServiceBase):
    def __init__(
        self,
        context: ShardContext,
        vm_requests: VmRequests,
        file_sets: FileSets,
        cache: Cache | None,
        clock: Clock,
        waits: Waits = WAITS,
    ) -> None:
        self._context = context
        self._waits = waits
        self._shard = context.shard
        self._agents = context.agents
        self._readiness = context.readiness
        self._issuer = context.issuer
        self._vm_requests = vm_requests
        self._file_sets = file_sets
        self._cache = cache
        self._clock = clock

    def _instance(self, connection: Connection) -> Instance:
        who = connection.identity
        assert isinstance(who, names.Agent)  # the listener admits no other role
        instance = self._shard.instances.get(who.id)
        if instance is None or instance.tenant != who.tenant:
            raise status.denied("this instance is not registered")
        if instance.state not in ADMITTED:
            raise status.denied(f"this instance is {instance.state.value}")
        return instance

    def _presence(self, stream: Any) -> Presence:
        connection = connection_of(stream)
        id = self._instance(connection).id
        self._count_message(id)
        return self._agents.at(id, connection)

    def _count_message(self, id: InstanceId) -> None:
        if not self._agents.allowance(id).messages.take(self._clock.monotonic()):
            raise status.exhausted("too many messages")

    def _may_write(self, id: InstanceId) -> bool:
        return self._agents.allowance(id).writes.take(self._clock.monotonic())

    def _count_write(self, id: InstanceId) -> None:
        if not self._may_write(id):
            raise status.exhausted("too many certificates were issued to this instance, try again in some minutes")

    # ---- health

    async def SubmitHealthReport(self, stream: Any) -> None:
        connection = connection_of(stream)
        if (registered := recognize_agent(self._shard, connection)) is not None:
            await asking.ask(self._shard, registered)
        presence = self._presence(stream)
        agents = self._agents
        sending = asyncio.Lock()  # another task may push, and a message may take several frames

        async def answer(sequence: int = 0) -> None:
            async with sending:
                await stream.send_message(self._answer(presence, sequence))

        agents.on_connect(presence)
        presence.push = answer
        goodbye = has_failed = False
        try:
            await stream.send_initial_metadata()
            while (message := await stream.recv_message()) is not None:
                self._count_message(presence.id)
                match message.WhichOneof("kind"):
                    case "report":
                        self._report(presence, message.report)
                        await answer(message.report.sequence)
                    case "notice":
                        self._notice(presence, message.notice)
                    case "goodbye":
                        goodbye = True
                        self._goodbye(presence, message.goodbye)
                    case _:
                        raise status.invalid("kind", "expected a report, a notice or a goodbye")
        except GRPCError:
            has_failed = True
            raise
        finally:
            presence.push = None
            agents.on_disconnect(presence, goodbye=goodbye)
            if agents.get(presence.id) is None:  # no newer connection has replaced it
                self._save_last_report(presence)
                self._readiness.disconnected(presence)
            if not goodbye and not connection.closed.is_set():
                # Without a health stream the agent counts as disconnected, so all its streams must start again.
                if has_failed:
                    asyncio.get_running_loop().call_later(ABORT_DELAY_SECONDS, connection.abort)
                else:
                    connection.abort()

    def _report(self, presence: Presence, report: agent_pb2.HealthReport) -> None:
        if report.instance_id and report.instance_id != presence.id:
            self._record_violation(presence.id, f"it reported for {report.instance_id[:64]!r}")
            raise status.denied("an agent can report only for its own instance")
        if len(report.checks) > MAX_CHECKS:
            raise status.invalid("checks", f"at most {MAX_CHECKS} results, found {len(report.checks)}")
        boot, sequence = report.boot_id, report.sequence
        self._detect_clone(presence, report)
        same_boot = boot == presence.boot_id
        if same_boot and sequence <= presence.sequence:
            return
        presence.boot_id, presence.sequence = boot, sequence
        presence.reported = self._clock.steady()
        before, presence.report = presence.report, report
        error, known_error = report.files_error, before.files_error if before is not None else ""
        if error and error != known_error:
            self._record_event(presence.id, ReasonCode.CONFIG, f"failed to receive or install files: {error[:500]}")
        if (  # field by field, because most reports have no news
            before is None
            or not same_boot
            or error != known_error
            or report.config_hash != before.config_hash
            or report.files != before.files
        ):
            self._save_last_report(presence)
        self._readiness.assess(presence)

    def _detect_clone(self, presence: Presence, report: agent_pb2.HealthReport) -> None:
        if self._agents.get(presence.id) is not presence:
            return  # the instance is deleted, or has a newer connection
        clones, now, connection = self._agents.clones, self._clock.monotonic(), presence.connection
        known = clones.is_seen(presence.id, now)
        seen = clones_of.Report(report.boot_id, report.sequence, connection.address, connection.since, now)
        other = clones.evidence(presence.id, seen)
        if not other:
            return
        if not known:
            addresses = " and ".join(sorted({other, connection.address}))
            message = f"two agents use its identity at the same time, from {addresses}"
            self._record_event(presence.id, ReasonCode.SECURITY, message)
        self._shard.post(ev.CloneDetected(presence.id))

    def _save_last_report(self, presence: Presence) -> None:
        """Only when a report has news, and when no further one comes: it is for people."""
        if self._cache is not None and presence.reported is not None:
            self._cache.put_last_report(presence.id, presence.reported)

    def _answer(self, presence: Presence, sequence: int) -> agent_pb2.HealthAnswer:
        spread = 1000 * len(self._agents) // RECONNECTS_PER_SECOND
        return agent_pb2.HealthAnswer(
            sequence=sequence,
            server_time_unix_ms=int(self._clock.wall() * 1000),
            report_interval_ms=int(self._context.active_config.shard_settings.health_check_interval * 1000),
            reconnect_spread_ms=spread,
            checks=self._readiness.checks_to_send(presence),
        )

    def _notice(self, presence: Presence, notice: agent_pb2.Notice) -> None:
        kind = NOTICES.get(notice.kind)
        if kind is None:
            raise status.invalid("kind", "expected a known kind of notice")
        deadline = None
        if notice.deadline_unix_ms > 0:
            # The deadline is in wall time; records have steady time.
            deadline = notice.deadline_unix_ms / 1000 - self._clock.wall() + self._clock.steady()
        if self._context.traces is not None:
            self._context.traces.on_notice(presence.id, notice.traceparent)
        self._shard.post(ev.NoticeReceived(presence.id, kind, deadline))

    def _goodbye(self, presence: Presence, goodbye: agent_pb2.Goodbye) -> None:
        if goodbye.reason == agent_pb2.Goodbye.SHUTDOWN:
            self._shard.post(ev.NoticeReceived(presence.id, ev.NoticeKind.SHUTDOWN))
            self._shard.post(ev.AgentLost(presence.id))
        else:
            self._shard.post(ev.AgentRestarting(presence.id))

    # ---- keys and files

    async def ReceiveKeyRequests(self, stream: Any) -> None:
        await stream.recv_message()
        presence = self._presence(stream)
        requested: list[str] | None = None
        while True:
            key_names = self._key_names(presence.id)
            if key_names != requested and key_names:
                await stream.send_message(agent_pb2.KeyRequest(names=key_names))
            requested = key_names
            presence.keys_changed.clear()
            await presence.keys_changed.wait()

    def _key_names(self, id: InstanceId) -> list[str]:
        resolved = self._resolve(id)
        return file_sets.key_names(resolved) if resolved is not None else []

    def _resolve(self, id: InstanceId) -> Resolved | None:
        instance = self._shard.instances.get(id)
        return self._vm_requests.resolve(instance) if instance is not None else None

    async def SubmitPublicKeys(self, stream: Any) -> None:
        request = await stream.recv_message()
        presence = self._presence(stream)
        wanted = set(self._key_names(presence.id))
        if len(request.keys) > MAX_KEYS:
            raise status.invalid("keys", f"at most {MAX_KEYS} keys, found {len(request.keys)}")
        accepted: dict[str, bytes] = {}
        for key in request.keys:
            if key.name not in wanted:
                continue  # no longer needed
            try:
                accepted[key.name] = keys.public_key_from_pem(key.pem)
            except keys.UnacceptableKeyError as problem:
                raise status.invalid(f"keys[{key.name[:64]}]", str(problem)) from None
        presence.public_keys.update(accepted)
        presence.changed.set()
        await stream.send_message(agent_pb2.SubmitPublicKeysResponse())

    async def ReceiveFiles(self, stream: Any) -> None:
        request = await stream.recv_message()
        presence = self._presence(stream)
        have, renew_at = request.config_hash, _renewal(request.files, self._clock.wall())
        digests = {file.name: file.sha256 for file in request.files}
        failures = 0
        while True:
            presence.changed.clear()
            wait: float | None = None
            try:
                made = await self._make_files(presence, have, renew_at, digests)
                failures = 0
                self._readiness.unblock(presence)
                if made is not None:
                    await _send(stream, made)
                    have, renew_at, digests = made.hash, made.renew_at, made.digests()
                if renew_at is not None:
                    wait = max(1.0, min(3600.0, renew_at - self._clock.wall()))
                resolved = self._resolve(presence.id)
                if resolved is not None and file_sets.has_sources(resolved):
                    wait = min(wait or math.inf, max(self._waits.source_check, self._file_sets.cache_ttl))
            except FileSetError as problem:
                self._readiness.block(presence, str(problem))
                failures += 1
                wait = self._waits.files_retry.delay(failures) if problem.retryable else None
            await background.is_set_within(presence.changed, wait)

    async def _make_files(
        self, presence: Presence, have: str, renew_at: float | None, digests: dict[str, str]
    ) -> FileSet | None:
        """The file set to send, or None if the instance has it or its keys are missing."""
        context = self._vm_requests.context
        instance, resolved = self._shard.instances.get(presence.id), self._resolve(presence.id)
        if instance is None or resolved is None or instance.state not in ADMITTED:
            return None
        due = renew_at is not None and self._clock.wall() >= renew_at
        wanted = file_sets.set_hash(context, resolved, instance)
        self._readiness.set_wanted(presence, wanted)
        if (
            wanted == have
            and not due
            and not await self._file_sets.has_new_content(context, resolved, instance, digests)
        ):
            return None
        if any(name not in presence.public_keys for name in file_sets.key_names(resolved)):
            presence.keys_changed.set()
            return None
        issued, spend = self._agents.issued(presence.id), lambda: self._count_write(presence.id)
        context = self._vm_requests.context  # it may have changed since
        made = await self._file_sets.make(context, resolved, instance, presence.public_keys, issued, spend=spend)
        for path in made.missing:
            self._vm_requests.report_missing(instance.key, path)
        return made

    # ---- certificate

    async def RenewCertificate(self, stream: Any) -> None:
        request = await stream.recv_message()
        instance = self._instance(connection_of(stream))
        self._count_message(instance.id)
        shard, issuer, life = self._shard, self._issuer, self._context.agent_ttl
        public_key = issuer.public_key(instance)
        if request.public_key_pem:
            public_key = renewed_key(request, cluster=issuer.authority.cluster, id=instance.id)
        new = issuer.new_certificate(public_key, life=life)
        owner = shard.owner_of_key(new.public_key)
        if owner is not None and owner != instance.id:
            self._record_violation(instance.id, f"it presented the key of {owner}")
            raise status.denied("this key belongs to another instance")
        if new.public_key != instance.public_key or not self._is_fresh(instance):
            self._count_write(instance.id)
            refusal = await asking.ask(shard, ev.Renewed(id=instance.id, **new.as_fields()))
            if refusal is not None:
                raise status.denied("this instance is not registered any more")
        made = issuer.agent_certificate(shard.instances[instance.id], life=life)
        await stream.send_message(certificate_response(made, issuer.authority))

    def _is_fresh(self, instance: Instance) -> bool:
        """A repeated request returns the same certificate."""
        remaining = (instance.certificate_expires or 0.0) - self._clock.wall()
        return (1 - FRESH_FRACTION) * self._context.agent_ttl < remaining <= self._context.agent_ttl

    def _record_violation(self, id: InstanceId, message: str) -> None:
        self._record_event(id, ReasonCode.SECURITY, f"request of the agent rejected: {message}")

    def _record_event(self, id: InstanceId, code: ReasonCode, message: str) -> None:
        message = unnamed(message)
        log.warning(message, extra={"instance": id})
        instance = self._shard.instances.get(id)
        if instance is not None and self._may_write(id):
            self._shard.event_log.record(instance.key, code, message, id)


def _renewal(files: Any, now: float) -> float | None:
    """When to renew the certificates that an instance has. It reports only when they expire, so they are renewed after two
    thirds of the time that remains."""
    expiries = [f.expires_unix for f in files if f.expires_unix]
    if not expiries:
        return None
    remaining = min(expiries) - now
    return now if remaining <= 0 else now + remaining * 2 / 3


async def _send(stream: Any, made: FileSet) -> None:
    for name, content in made.files.items():
        await stream.send_message(agent_pb2.FileMessage(file=agent_pb2.File(name=name, content=content)))
    await stream.send_message(
        agent_pb2.FileMessage(commit=agent_pb2.Commit(config_hash=made.hash, files=len(made.files)))
    )
