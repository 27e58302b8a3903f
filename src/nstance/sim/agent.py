"""A simulated agent: registers with its nonce, keeps a connection to the leader, reports, and suffers faults."""

import asyncio
import functools
import ssl
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nstance.model.ids import InstanceId, ProviderId
from nstance.pki import keys, proof
from nstance.providers.port import CreateRequest, Status, Vm
from nstance.sim.agent_port import DELAY_SECONDS, AgentPort, Connection
from nstance.sim.desired_groups import CLUSTER, SUSPECT_AFTER, check_name
from nstance.sim.rng import SeededRng
from nstance.v1 import agent_pb2, registration_pb2

if TYPE_CHECKING:
    from nstance.sim.world import World

RECOVERY_SECONDS = 1.5  # for which a report of its recovery may be on its way
CLONE_ADDRESS = "203.0.113.8"


@functools.lru_cache(maxsize=4096)
def key_pair(number: int) -> tuple[Ed25519PrivateKey, bytes, str]:
    key = keys.generate(SeededRng(f"agent-key-{number}"))
    public = keys.public_bytes(key)
    return key, public, keys.public_to_pem(public)


def registration_request(number: int, nonce: str, hostname: str = "") -> registration_pb2.RegisterAgentRequest:
    key, _, pem = key_pair(number)
    return registration_pb2.RegisterAgentRequest(
        nonce=nonce,
        public_key_pem=pem,
        proof=proof.prove_registration(key, cluster=CLUSTER, nonce=nonce),
        hostname=hostname,
    )


class SimAgent:
    def __init__(
        self, world: "World", request: CreateRequest, vm: Vm, *, number: int, mute: bool, broken: bool
    ) -> None:
        self.world = world
        self.id: InstanceId = request.id
        self.provider_id = vm.provider_id
        self.request = request
        self.address = vm.ip4
        self.number = number
        self.mute = mute  # it never registers: a bad image
        self.broken = broken  # it never becomes ready
        self.failing = False  # whatever it checks fails at the moment
        self._failing_since: float | None = None
        self._failed = (0.0, -RECOVERY_SECONDS)  # from, until: when checks failed before
        self.alive = True
        self.registered = False
        self.identity_lost = False  # it can never register again
        self.certificate: bytes | None = None  # DER
        self.connection: Connection | None = None
        self.notices: set[str] = set()
        self.installed = ""  # the hash of its files
        self.ready_reports: dict[AgentPort, tuple[float, float | None]] = {}  # from, until (None: still)
        self._ready_on: dict[AgentPort, Connection] = {}  # the connection of the last ready report
        self.unreachable_since: float | None = None  # cut off or hung
        self._healthy_since = world.now
        self._last_seen: dict[AgentPort, float] = {}
        # What was sent while it was unreachable.
        self._undelivered: tuple[Connection, str] | None = None
        self._undelivered_checks: tuple[Connection, agent_pb2.CheckConfig] | None = None
        self._checks: agent_pb2.CheckConfig | None = None  # that it runs
        self._has_results = False  # of these
        self._boot, self._sequence = 0, 0
        self._disconnected = asyncio.Event()
        self._reachable = asyncio.Event()
        self._reachable.set()
        self._task = world.start(self._run())

    # ---- liveness

    def unreachable_for(self) -> float:
        return 0.0 if self.unreachable_since is None else self.world.now - self.unreachable_since

    def last_seen_by(self, port: AgentPort) -> float:
        """When this leader received something from it last, or began to listen."""
        if self.connection is not None and self.connection.port is port and self.unreachable_since is None:
            return self.world.now
        return max(self._last_seen.get(port, 0.0), port.opened_at)

    def healthy_for(self) -> float:
        """Seconds without a fault of its own, whether or not there was a leader to talk to."""
        if self.unreachable_since is not None or not self.registered or not self.alive:
            return 0.0
        return self.world.now - self._healthy_since

    def failed_for(self) -> float:
        """Seconds for which its check fails, or failed until a moment ago."""
        since, until = self._failed
        if self._failing_since is not None:
            since, until = self._failing_since, self.world.now
        return until - since if until >= self.world.now - RECOVERY_SECONDS else 0.0

    def _note_last_seen(self) -> None:
        """Called before something happens to it: the leader has seen it until now."""
        if self.connection is not None and self.unreachable_since is None:
            self._last_seen[self.connection.port] = self.world.now

    # ---- files and readiness

    @property
    def is_ready(self) -> bool:
        if not self.installed or self.broken or self.failing:
            return False
        return all(each.passing for each in self._results()) and (self._has_results or not self._is_checked)

    @property
    def _is_checked(self) -> bool:
        group = self.world.desired_groups.groups.get(self.request.group)
        return group is not None and bool(group.checks)

    def _results(self) -> list[agent_pb2.CheckResult]:
        checks = self._checks.checks if self._checks is not None and self._has_results else ()
        own = check_name(self.request.args.get("generation"))
        return [agent_pb2.CheckResult(name=each.name, passing=not self.failing and each.name == own) for each in checks]

    def ready_since(self, port: AgentPort, *, within: float) -> float | None:
        """Since when it has reported ready to this leader; None if it has not, within so many seconds."""
        since, until = self.ready_reports.get(port, (0.0, -within))
        return since if until is None or until >= self.world.now - within else None

    def install_files(self, connection: Connection, hash: str) -> None:
        """The server sent files. What is lost with a connection is sent again on the next one."""
        if connection.closed.is_set() or not self.alive:
            return
        if self.unreachable_since is not None:
            self._undelivered = connection, hash
            return
        self.installed = hash
        self.report()

    def receive_checks(self, connection: Connection, checks: agent_pb2.CheckConfig) -> None:
        """The server sent checks. Their first results follow when they have run; until then there are none."""
        if connection.closed.is_set() or not self.alive:
            return
        if self.unreachable_since is not None:
            self._undelivered_checks = connection, checks
            return
        self._checks, self._has_results = checks, False
        self.world.later(self.world.random.uniform(0.1, 2.0), self._run_checks, checks)

    def _run_checks(self, checks: agent_pb2.CheckConfig) -> None:
        if self._checks is checks and self.alive:
            self._has_results = True
            self._note_failures()
            self.report()

    def fail_checks(self, failing: bool) -> None:
        if self.alive and self.failing is not failing:
            self.failing = failing
            self._note_failures()
            self.report()

    def _note_failures(self) -> None:
        """An adopted VM may be of another revision than its record, and then fails the checks of that one."""
        fails = self.failing or not all(each.passing for each in self._results())
        if fails and self._failing_since is None:
            self._failing_since = self.world.now
        elif not fails and self._failing_since is not None:
            self._failed, self._failing_since = (self._failing_since, self.world.now), None

    def report(self) -> None:
        connection = self.connection
        if connection is None or self.unreachable_since is not None or connection.closed.is_set():
            return
        self._sequence += 1
        report = agent_pb2.HealthReport(
            boot_id=f"{self.provider_id}-{self._boot}",
            sequence=self._sequence,
            config_hash=self.installed,
            received_hash=self.installed if self._has_good_files else "",
            checks_hash=self._checks.hash if self._checks is not None else "",
            checks=self._results(),
        )
        connection.send(agent_pb2.AgentMessage(report=report))
        if not self.is_ready:
            self._end_ready_report(connection.port)
            return
        if self.ready_reports.get(connection.port, (0.0, 0.0))[1] is not None:
            self.ready_reports[connection.port] = self.world.now, None
        self._ready_on[connection.port] = connection

    @property
    def _has_good_files(self) -> bool:
        """Without checks, files that are not received stand for whatever may be wrong."""
        return self.is_ready or (self._is_checked and bool(self.installed) and not self.broken)

    def _end_ready_report(self, port: AgentPort) -> None:
        since, until = self.ready_reports.get(port, (0.0, 0.0))
        if until is None:
            self.ready_reports[port] = since, self.world.now

    # ---- faults

    def cut_off(self, seconds: float) -> None:
        """Its packets are lost in both directions, or it hangs."""
        if self.unreachable_since is not None:
            return
        self._note_last_seen()
        self.unreachable_since = self.world.now
        self._reachable.clear()
        self.world.later(seconds, self.heal)
        connection = self.connection
        if connection is not None:  # the server asks for a sign of life, and closes the connection without one
            connection.port.server.later(SUSPECT_AFTER, self._on_keepalive_timeout, connection, self.unreachable_since)

    def _on_keepalive_timeout(self, connection: Connection, since: float) -> None:
        if self.unreachable_since == since:
            connection.abort()

    def heal(self) -> None:
        if self.unreachable_since is not None and self.alive:
            self.unreachable_since = None
            self._healthy_since = self.world.now
            self._reachable.set()
            undelivered, self._undelivered = self._undelivered, None
            if undelivered is not None:
                self.install_files(*undelivered)
            checks, self._undelivered_checks = self._undelivered_checks, None
            if checks is not None:
                self.receive_checks(*checks)
            self.report()

    def die(self, *, reset: bool) -> None:
        """Its VM stops. `reset`: the server notices at once; a VM that is torn down resets nothing."""
        self._note_last_seen()
        self.alive = False
        self._task.cancel()
        connection, self.connection = self.connection, None
        if self.unreachable_since is None:
            self.unreachable_since = self.world.now
        if connection is not None and not connection.closed.is_set():
            connection.port.server.later(DELAY_SECONDS if reset else SUSPECT_AFTER, connection.abort)

    def on_disconnect(self, connection: Connection) -> None:
        if self._ready_on.get(connection.port) is connection:  # otherwise a clone has reported on a newer one
            self._end_ready_report(connection.port)
        if self.connection is connection:
            self._note_last_seen()
            self.connection = None
            self.world.log("agent disconnected", self.id, connection.port.server.name)
            self.world.on_moment("loss of an agent")
            self._disconnected.set()

    def restart(self, seconds: float) -> None:
        """It sends a goodbye, and connects again after so many seconds."""
        connection = self.connection
        if connection is None or self.unreachable_since is not None:
            return
        connection.send(agent_pb2.AgentMessage(goodbye=agent_pb2.Goodbye(reason=agent_pb2.Goodbye.RESTART)))
        self._boot, self._sequence = self._boot + 1, 0
        self._checks, self._has_results = None, False
        connection.port.server.later(2 * DELAY_SECONDS, connection.abort)
        self.cut_off(seconds)

    def lose_identity(self) -> None:
        """It loses its state directory: the next registration is with another key."""
        self.number += 2000
        self.registered = False
        self.identity_lost = True
        if self.connection is not None:
            self.connection.port.server.later(DELAY_SECONDS, self.connection.abort)

    def clone_identity(self, seconds: float) -> None:
        """A second agent runs with its identity on another machine, for so many seconds."""
        provider_id = ProviderId(f"copy-of-{self.provider_id}")
        vm = Vm(id=self.id, provider_id=provider_id, status=Status.RUNNING, ip4=CLONE_ADDRESS)
        clone = SimAgent(self.world, self.request, vm, number=self.number, mute=False, broken=self.broken)
        clone.registered = True
        # The server cannot know which of the two reports.
        clone.ready_reports, clone._ready_on = self.ready_reports, self._ready_on
        self.world.clones_until = max(self.world.clones_until, self.world.now + seconds)
        self.world.later(seconds, lambda: clone.die(reset=True))

    def deliver_notice(self, kind: str, deadline: float) -> bool:
        """The provider announces its end. Returns whether the agent could pass it on."""
        connection = self.connection
        if connection is None or self.unreachable_since is not None:
            return False
        self.notices.add(kind)
        milliseconds = int((connection.port.server.machine.wall() + deadline) * 1000)
        notice = agent_pb2.Notice(kind=agent_pb2.Notice.Kind.Value(kind), deadline_unix_ms=milliseconds)
        connection.send(agent_pb2.AgentMessage(notice=notice))
        return True

    # ---- its program

    async def _run(self) -> None:
        world = self.world
        while not self.mute:
            await self._reachable.wait()
            port = world.find_agent_port()
            if port is None:
                await asyncio.sleep(world.random.uniform(0.2, 1.2))
            elif port.server.machine.stopped:
                await asyncio.sleep(3.0)  # until its call has timed out
            elif not self.registered:
                await self._register(port)
            else:
                await self._connect(port)

    async def _register(self, port: AgentPort) -> None:
        world = self.world
        request = registration_request(self.number, self.request.nonce, self.id)
        try:
            answer = await port.register(request, self.address)
        except TimeoutError:
            world.count("agent registration without answer")
            await asyncio.sleep(world.random.uniform(0.1, 1.0))
            return
        if answer.startswith("-----"):
            self.registered = True
            self.certificate = ssl.PEM_cert_to_DER_cert(answer)
            self._last_seen[port] = self._healthy_since = world.now
            world.auditor.on_certificate(self.id, key_pair(self.number)[1])
            world.log("registered", self.id)
            world.on_moment("registration")
        else:
            world.count(f"agent registration refused {answer.lower()}")
            await asyncio.sleep(world.random.uniform(0.5, 3.0))

    async def _connect(self, port: AgentPort) -> None:
        world = self.world
        if world.now < world.agents_shut_out_until:
            self.cut_off(world.agents_shut_out_until - world.now)
            return
        self._disconnected.clear()
        world.log("agent connected", self.id, port.server.name)
        self.connection = port.connect(self)
        self.report()
        await self._disconnected.wait()
        await asyncio.sleep(world.random.uniform(0.1, 2.0))
