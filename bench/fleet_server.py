"""The measured server: a process with object storage and a cloud in memory, and a fleet that already runs. Requests come on
standard input and answers go to standard output, one JSON object per line.

`bench.fleet` starts it with its settings as JSON in the only argument. It measures its own processor time and memory;
storage and cloud are part of the memory. Times are of CLOCK_MONOTONIC, which both processes share.
"""

import asyncio
import base64
import dataclasses
import hashlib
import json
import os
import resource
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nstance.clock import SystemClock, SystemRng
from nstance.config import resolve as resolving
from nstance.config.addresses import Service
from nstance.config.dynamic import DynamicGroup
from nstance.model import events as ev
from nstance.model.ids import (
    DEFAULT_TENANT,
    ClusterId,
    GroupKey,
    GroupName,
    IdMaker,
    InstanceId,
    Kind,
    ProviderId,
    ServerId,
    ShardId,
)
from nstance.model.instance import Instance, Nonce, State
from nstance.objects import journal, journal_writer
from nstance.objects.file import FileStore
from nstance.objects.memory import MemoryStore
from nstance.objects.port import Key
from nstance.pki import keys
from nstance.providers import memory_offers
from nstance.providers.errors import NoCapacityError
from nstance.providers.memory import MemoryProvider
from nstance.providers.memory_behavior import Outcome, Script
from nstance.providers.memory_cloud import MemoryCloud
from nstance.providers.port import CreateRequest, FixedAddress, Instances, Scope, Status, Vm
from nstance.server.config import configuration as configurations
from nstance.server.gc_tuner import GcTuner
from nstance.server.leader.context import TermContext
from nstance.server.options import Options
from nstance.server.state.inbox import Item
from nstance.server.wiring import ServerProcess
from nstance.telemetry import logs

CLUSTER = ClusterId("bench")
SHARD = ShardId("one")
STANDBY_OFFSET = 10
TIMEOUT_SECONDS = 300.0
EXACT_MEMORY = {"PYTHONMALLOC": "malloc", "MALLOC_ARENA_MAX": "1"}  # malloc then knows of every byte

Json = dict[str, Any]


def agent_key(seed: str, id: str) -> Ed25519PrivateKey:
    """Both processes derive it, so that keys need not be sent."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"{seed}/{id}".encode()).digest())


def send(**fields: Any) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def resident(pid: int | str = "self") -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def allocated() -> int:
    """Bytes that malloc has allocated; with EXACT_MEMORY, all that the process uses."""
    import ctypes  # a server never has it

    class _Mallinfo(ctypes.Structure):
        """glibc's `struct mallinfo2`."""

        _fields_ = [("numbers", ctypes.c_size_t * 10)]

    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    numbers = mallinfo().numbers
    return int(numbers[4] + numbers[7])  # mapped separately, and in the arena


async def until(find: Callable[[], Any], *, every: float = 0.01) -> None:
    while True:
        if find():
            return
        await asyncio.sleep(every)


class ReportingProvider(MemoryProvider):
    """Reports creates and deletes to the parent process."""

    async def create(self, request: CreateRequest) -> Vm:
        send(event="create", at=time.monotonic(), id=request.id, group=request.group)
        try:
            return await super().create(request)
        except NoCapacityError:
            send(event="refused", at=time.monotonic(), id=request.id)
            raise

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> Status:
        send(event="delete", at=time.monotonic(), id=id)
        return await super().delete(id, provider_id)


class FleetServer:
    def __init__(self, settings: Json) -> None:
        self.settings = settings
        self.shard = ShardId(settings["shard"])
        self.clock, self.rng = SystemClock(), SystemRng()
        self.store = FileStore(settings["bucket"]) if settings["bucket"] else MemoryStore(self.clock)
        self.behavior = Script()
        self.booted: list[CreateRequest] = []
        self.cloud = MemoryCloud(self.clock, behavior=self.behavior, on_boot=self._boot)
        self.cloud._created = settings["first_vm"]
        self.scope = Scope(cluster=CLUSTER, shard=self.shard)
        self.server: ServerProcess
        self.running: asyncio.Task[None]
        self.profile: Any = None
        self.ready_at: dict[InstanceId, float] = {}

    def _boot(self, request: CreateRequest, vm: Vm) -> None:
        self.booted.append(request)

    async def configure(self, sizes: dict[str, int]) -> None:
        bind = {service.key: f"127.0.0.1:{self.settings['base'] + n}" for n, service in enumerate(Service)}
        config = {
            "cluster": {"id": CLUSTER, "secrets": {"encryption_key": {"provider": "env", "source": "NO_SUCH_KEY"}}},
            "shard": {
                "infra": {"provider": "memory", "region": "here", "zone": "a"},
                "subnet_pools": {"main": ["subnet-1"]},
                "capacity_retry": self.settings["capacity_retry"],
                "bind": bind,
                "garbage_collection": {"deleted_record_retention": f"{self.settings['retention']}s"},
                **({"leader_network": {"ip": "10.0.0.250"}} if self.settings["ec2"] else {}),
            },
            "templates": {
                "web": {
                    "kind": "web",
                    "arch": "amd64",
                    "instance_types": self.settings["instance_types"],
                    "vars": {"greeting": "hello"},
                    "files": {"motd": {"kind": "string", "template": "{{ .Vars.greeting }} {{ .Instance.ID }}"}},
                    "checks": {f"check-{n}": {"kind": "tcp", "port": 80 + n} for n in range(self.settings["checks"])},
                }
            },
            "groups": {"default": {name: {"template": "web", "size": size} for name, size in sizes.items()}},
        }
        await self._overwrite(f"shard/{self.shard}/config.jsonc", json.dumps(config).encode())

    async def _overwrite(self, key: str, body: bytes) -> None:
        if isinstance(self.store, FileStore):
            await self.store.put(Key(key), body)
        else:
            self.store.tamper(key, body)

    def _journal(self) -> journal.Journal:
        return journal.Journal(
            self.store,
            journal_prefix=f"shard/{self.shard}/journal/",
            snapshot_prefix=f"shard/{self.shard}/snapshot/",
            clock=self.clock,
        )

    async def join(self) -> None:
        """Create the same VMs as in the leader's process: nothing happens to them while it is measured."""
        state, _ = await self._journal().load()
        for record in sorted(state.instances.values(), key=lambda record: record.provider_id or ""):
            vm = self._vm(record.id, record.key, record.subnet)
            assert self.settings["ec2"] or vm.provider_id == record.provider_id

    async def populate(self) -> list[tuple[str, str]]:
        """Write a snapshot with running instances and create their VMs."""
        settings = self.settings
        sizes = {f"g{number}": settings["size"] for number in range(settings["groups"])}
        await self.configure(sizes)
        groups = (await configurations.read(self.store, self.shard)).groups
        ids = IdMaker(wall=self.clock.wall, bits=self.rng.bits)
        records = [
            self._instance(ids, groups[key])
            for key in groups
            for _ in range(settings["size"] if settings["settled"] else 0)
        ]
        if records:
            journals = self._journal()
            state, _ = await journals.load()
            state.instances.update({record.id: record for record in records})
            writer = journal_writer.Writer(journals, state, epoch=0, guard=_no_guard, rng=self.rng)
            await writer.fence()
            await writer.snapshot()
        self.booted.clear()
        if self.settings["ec2"]:
            await asyncio.to_thread(self._adopt, records)
        return [(record.id, record.group) for record in records]

    def _instance(self, ids: IdMaker, resolved: Any) -> Instance:
        group, now = resolved.group, self.clock.steady()
        id = ids.make(group.kind)
        vm = self._vm(id, group.key, group.subnets[0] if group.subnets else "")
        public = keys.public_bytes(agent_key(self.settings["seed"], id))
        provider_id = vm.provider_id
        if self.settings["ec2"]:
            from bench import ec2_endpoint  # other servers never have it

            provider_id = ProviderId(ec2_endpoint.provider_id(id))
        return Instance(
            id=id,
            tenant=group.key.tenant,
            group=group.key.name,
            state=State.RUNNING,
            created=now - 60,
            template=group.template,
            instance_type=group.instance_type,
            subnet=group.subnets[0] if group.subnets else "",
            infra_hash=group.infra_hash,
            request_hash="sha256:" + "b" * 64,
            nonce=Nonce(jti=hashlib.md5(id.encode()).hexdigest(), issued=int(now - 60), expires=int(now + 240)),
            provider_id=provider_id,
            seen=True,
            ip4=vm.ip4,
            hostname=vm.hostname,
            registered=now - 30,
            public_key=base64.b64encode(public).decode(),
            certificate_serial=hashlib.md5(id.encode()).hexdigest(),
            certificate_expires=now + 30 * 86400,
        )

    def _vm(self, id: InstanceId, key: GroupKey, subnet: str) -> Vm:
        return self.cloud.create(
            self.scope,
            CreateRequest(
                id=id,
                tenant=key.tenant,
                group=key.name,
                kind=Kind("web"),
                template="web",
                created=self.clock.steady(),
                subnet=subnet,
            ),
        )

    def start(self) -> None:
        name, offset = ("b", STANDBY_OFFSET) if self.settings["standby"] else ("a", 0)
        options = Options(
            id=ServerId(name),
            shard=self.shard,
            storage="memory",
            bucket="",
            prefix="",
            cachedir=Path(self.settings["dir"]) / name,
            advertise_host="127.0.0.1",
            port_offset=offset,
            validate=None,
            debug=False,
            json_logs=False,
            insecure_dev=True,
        )
        provider: Instances = ReportingProvider(self.scope, self.clock, cloud=self.cloud, server=name)
        if self.settings["ec2"]:
            provider = self._aws(self.settings["ec2"])
        elif self.settings["google"]:
            provider = self._google(self.settings["google"])
        self.server = ServerProcess(options, clock=self.clock, rng=self.rng, store=self.store, provider=provider)
        self.running = asyncio.create_task(self.server.run())

    def _aws(self, url: str) -> Instances:
        from nstance.providers.aws.provider import AwsSettings, open_aws  # as in a server that is configured so

        keys = {
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
        }
        settings = AwsSettings(region="eu-north-1", endpoint=url)
        address = FixedAddress("10.0.0.250")
        return open_aws(self.scope, settings, address, clock=self.clock, server="bench", environment=keys)

    def _google(self, url: str) -> Instances:
        from nstance.providers.gcp.provider import GcpSettings, open_gcp  # as in a server that is configured so

        variables = {"GCE_METADATA_HOST": url.removeprefix("http://"), "HOME": "/nonexistent"}
        settings = GcpSettings(zone="europe-west1-b", project="bench", endpoint=url)
        return open_gcp(self.scope, settings, None, clock=self.clock, environment=variables)

    def _adopt(self, records: list[Instance]) -> None:
        """The same VMs in the EC2 of the measurement."""
        vms = [
            {
                "nstance:instance-id": record.id,
                "nstance:managed": "true",
                "nstance:cluster-id": CLUSTER,
                "nstance:shard": self.shard,
                "nstance:tenant": record.tenant,
                "nstance:group": record.group,
            }
            for record in records
        ]
        body = json.dumps({"vms": vms}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.settings['ec2']}/adopt", body), timeout=30).close()

    def _find_lead(self) -> TermContext | None:
        if self.running.done():
            self.running.result()
            raise RuntimeError("the server has ended")
        return self.server.server.leader.context if self.server.server is not None else None

    @property
    def lead(self) -> TermContext:
        lead = self._find_lead()
        assert lead is not None, "the server does not lead"
        return lead

    # ---- requests of the parent

    async def do_lead(self) -> Json:
        """Wait until this server leads and has listed the cloud."""
        await until(lambda: (lead := self._find_lead()) is not None and lead.shard.listed)
        if not self.settings["standby"]:
            # The agents are not connected yet, and the machine may be slow.
            self.lead.shard.liveness.reconnect_grace = TIMEOUT_SECONDS
        authority = self.lead.issuer.authority.signer(self.clock.wall())
        return {"ca": authority.pem, "ca_key": keys.private_to_pem(authority.key), "at": time.monotonic()}

    async def do_member(self) -> Json:
        """Wait until the lease names a standby."""
        assert self.server.server is not None
        elector = self.server.server.elector
        await until(lambda: elector.held is not None and elector.held.members)
        return {}

    async def do_usage(self) -> Json:
        used, lead = resource.getrusage(resource.RUSAGE_SELF), self._find_lead()
        return {
            "rss": resident(),
            "cpu": used.ru_utime + used.ru_stime,
            "agents": len(lead.agents) if lead is not None else 0,
            "epoch": lead.shard.term.epoch if lead is not None else 0,
        }

    async def do_destroy(self, id: str) -> Json:
        self.cloud.destroy(InstanceId(id))
        return {}

    async def do_stop(self, id: str) -> Json:
        self.cloud.stop(InstanceId(id))
        return {}

    async def do_offers(self, limits: dict[str, int]) -> Json:
        self.cloud.offers = {memory_offers.parse_offer(text): count for text, count in limits.items()}
        return {}

    async def do_latency(self, seconds: float) -> Json:
        self.behavior.usual = Outcome(before=seconds / 2, after=seconds / 2)
        return {}

    async def do_sizes(self, sizes: dict[str, int]) -> Json:
        await self.configure(sizes)
        at = time.monotonic()
        await self.lead.active_config.refresh()
        return {"at": at}

    async def do_edit(self, group: str, greeting: str) -> Json:
        """Change the vars of one group as an operator does. Returns the processor time and the number of woken agents."""
        lead = self.lead
        now, key = lead.configuration, GroupKey(DEFAULT_TENANT, GroupName(group))
        edited = resolving.resolve_group(now.settings, key, DynamicGroup(vars={"greeting": greeting}))
        present = [presence for id in lead.shard.instances if (presence := lead.agents.get(id)) is not None]
        began = time.thread_time()
        lead.active_config.activate(dataclasses.replace(now, groups={**now.groups, key: edited}))
        seconds = time.thread_time() - began
        return {"seconds": seconds, "woken": sum(presence.changed.is_set() for presence in present)}

    async def do_note_readiness(self) -> Json:
        """Record from now on when each instance becomes ready."""
        readiness, shard = self.lead.readiness, self.lead.shard

        def changed(id: InstanceId) -> None:
            if readiness.is_ready(shard.instances[id]):
                self.ready_at[id] = time.monotonic()

        readiness.subscribe(changed)
        return {}

    async def do_ready_at(self) -> Json:
        return {"moments": self.ready_at}

    async def do_nonces(self) -> Json:
        return {"booted": [(request.id, request.nonce) for request in self.booted]}

    async def do_booted(self) -> Json:
        """VMs that booted since the last call, with their nonces."""
        booted, self.booted = self.booted, []
        return {"booted": [(request.id, request.group, request.nonce) for request in booted]}

    async def do_memory(self) -> Json:
        """Bytes in use, without what the cloud remembers of deleted VMs."""
        self.cloud._deleted.clear()
        return {"used": allocated(), "rss": resident(), "records": len(self.lead.shard.instances)}

    async def do_events(self, count: int, durable: bool) -> Json:
        """The median cost of one event for the group g0: receiving, deciding, and queueing it for the journal. Several
        without a pause, so that work of the connections in between does not count."""
        shard = self.lead.shard
        key = GroupKey(next(iter(shard.desired_groups)).tenant, GroupName("g0"))
        members = list(shard.members(key))
        costs: list[float] = []
        for number in range(count):
            id = members[number % len(members)]
            event: ev.Event = ev.AgentConnected(id)
            if durable:
                event = ev.Renewed(
                    id=id,
                    public_key=shard.instances[id].public_key,
                    certificate_serial=f"{number:x}",
                    certificate_expires=self.clock.wall() + 86400 + number,
                )
            began = time.thread_time()
            shard._decide(key, [Item(event, self.clock.monotonic())])
            costs.append(time.thread_time() - began)
            if number % 40 == 39:
                await asyncio.sleep(0.05)
        return {"seconds": statistics.median(costs)}

    async def do_profile(self, on: bool) -> Json:
        import cProfile  # a server never has it

        self.profile = self.profile or cProfile.Profile()
        if on:
            self.profile.enable()
        else:
            self.profile.disable()
            self.profile.dump_stats(self.settings["profile"])
        return {}

    async def serve(self) -> None:
        """Answer until the parent closes standard input."""
        reader = asyncio.StreamReader(limit=1 << 24)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            request = json.loads(line)
            task = asyncio.create_task(self._answer(request.pop("number"), request.pop("do"), request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _answer(self, number: int, do: str, arguments: Json) -> None:
        method: Callable[..., Awaitable[Json]] = getattr(self, f"do_{do}")
        try:
            send(reply=number, **await method(**arguments))
        except Exception as problem:
            send(reply=number, error=f"{do}: {problem!r}")


async def _no_guard() -> None:
    return None


async def main(settings: Json) -> None:
    fleet = FleetServer(settings)
    agents: list[tuple[str, str]] = []
    if settings["standby"]:
        await fleet.join()
    else:
        agents = await fleet.populate()
    fleet.start()
    collecting = asyncio.create_task(GcTuner(fleet.clock).run())  # as nstance-server does
    send(agents=agents)
    await fleet.serve()
    fleet.running.cancel()
    collecting.cancel()
    await asyncio.gather(fleet.running, return_exceptions=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when the parent closes its standard input
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    logs.configure(json=False, debug=False, program="nstance-server")
    uvloop.run(main(json.loads(sys.argv[1])))
