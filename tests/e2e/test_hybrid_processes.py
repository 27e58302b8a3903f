"""One cluster as processes: a shard on each of four providers, one bucket, and the operator that spreads a pool over them.

Stand-ins are AWS, Google Cloud and Proxmox; QEMU is real. Their VMs run no agents. `make test-hybrid` installs what is
needed; otherwise it is skipped.
"""

import asyncio
import base64
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from contracts import aws_world, gcp_world, provider_worlds
from e2e.processes import KEY, ShardWorld, settings
from e2e.test_operator_process import kubernetes, operating
from nstance.dev.aws.moto import AMI
from nstance.kube import kinds
from nstance.kube.http import HttpKube
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, State
from support import ports, proxmox_stand_in
from support.eventually import eventually
from support.gcp.stand_in import REGION, ZONE
from support.moto_server import KEYS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SECONDS = 240.0
ENDING = (State.DELETING, State.DELETED, State.FAILED)


@dataclass
class Wire:
    """The network before a stand-in. While it is cut, connections are open and silent."""

    to: str
    is_whole: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def laid(self) -> AsyncIterator["Wire"]:
        self.is_whole.set()
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self._drop()

    def cut(self) -> None:
        self.is_whole.clear()
        self._drop()

    def mend(self) -> None:
        self._drop()
        self.is_whole.set()

    def _drop(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError):
            await self.is_whole.wait()
            there = urlsplit(self.to)
            from_there, to_there = await asyncio.open_connection(there.hostname, there.port)
            self._open.add(to_there)
            await asyncio.gather(_pump(reader, to_there), _pump(from_there, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@dataclass
class Place:
    """A provider's stand-in, how the shard reaches it, and what its configuration says."""

    world: Any
    infra: dict[str, Any]
    template: dict[str, Any]
    environment: dict[str, str]
    wire: Wire | None = None
    subnets: tuple[str, ...] = ()

    def darken(self) -> None:
        if self.wire is not None:
            self.wire.cut()
        else:  # a host: its folder is gone, as of a disk that is not mounted
            self.world.root.rename(self.world.root.with_name("away"))

    def lighten(self) -> None:
        if self.wire is not None:
            self.wire.mend()
        else:
            self.world.root.with_name("away").rename(self.world.root)


async def open_places(stack: AsyncExitStack) -> dict[str, Place]:
    async def wire(url: str) -> Wire:
        return await stack.enter_async_context(Wire(url).laid())

    proxmox = await stack.enter_async_context(provider_worlds.proxmox_world())
    aws = await stack.enter_async_context(aws_world.aws_world())
    gcp = await stack.enter_async_context(gcp_world.gcp_world())
    qemu = await stack.enter_async_context(provider_worlds.qemu_world())
    to_aws, to_gcp, to_proxmox = [await wire(each) for each in (aws.stand_in.url, gcp.stand_in.url, proxmox._url)]
    of_aws = {**KEYS, "AWS_EC2_METADATA_SERVICE_ENDPOINT": aws.stand_in.metadata_url(aws.server)}
    of_gcp = {
        name: value.replace(urlsplit(gcp.stand_in.url).netloc, urlsplit(to_gcp.url).netloc)
        for name, value in gcp.stand_in.environment().items()
    }
    of_proxmox = {"PROXMOX_TOKEN_ID": proxmox_stand_in.TOKEN, "PROXMOX_TOKEN_SECRET": proxmox_stand_in.SECRET}
    aws_infra = {"provider": "aws", "region": KEYS["AWS_REGION"], "zone": "z", "options": {"endpoint": to_aws.url}}
    clone = {"TemplateName": "debian", "StoragePool": "local-lvm"}
    pve_options = {"api_url": to_proxmox.url, "reserve_memory_mib": 0}
    qemu_options = {"dir": str(qemu.root), "images": str(qemu.root.parent / "images")}
    return {
        "aws-a": Place(
            aws,
            aws_infra,
            {"instance_type": aws_world.TYPE, "args": {"ImageId": AMI}},
            of_aws,
            to_aws,
            (aws.subnets[0],),
        ),
        "gcp-b": Place(
            gcp,
            {"provider": "gcp", "region": REGION, "zone": ZONE},
            {"instance_type": gcp_world.TYPE, "args": dict(gcp_world.ARGS)},
            of_gcp,
            to_gcp,
            ("subnet-1",),
        ),
        "rack-1": Place(
            proxmox,
            {"provider": "proxmox", "options": pve_options},
            {"instance_type": "cpu:1,memory:64", "args": clone},
            of_proxmox,
            to_proxmox,
        ),
        "lab-1": Place(
            qemu,
            {"provider": "qemu", "options": qemu_options},
            {"instance_type": "cpu:1,memory:16", "args": {"Image": "guest.raw"}},
            {},
        ),
    }


def configuration(shard: ShardWorld, place: Place) -> dict[str, Any]:
    made = settings(shard, web={"template": "web", "size": 1})
    made["cluster"] = {"id": "demo"}
    made["shard"]["infra"] = place.infra
    if place.subnets:
        made["shard"]["subnet_pools"] = {"main": list(place.subnets)}
    made["templates"] = {"web": {"kind": "web", "userdata": {"content": "{{ .Nonce }}"}, **place.template}}
    return made


async def living(shard: ShardWorld) -> dict[str, Instance]:
    """Records whose VM was made and is not leaving."""
    records = await asyncio.to_thread(shard.records)
    return {id: each for id, each in records.items() if each.state not in ENDING and each.provider_id is not None}


async def has(shard: ShardWorld, place: Place, size: int) -> bool:
    """By the records, and by the provider's own books."""
    found = await living(shard)
    return len(found) == size and sum(place.world.count(InstanceId(id)) for id in found) == size


async def admin(bucket: Path, *words: str) -> str:
    command = [sys.executable, "-m", "nstance.admin", "cluster", *words]
    storage = {"NSTANCE_ADMIN_STORAGE_PROVIDER": "file", "NSTANCE_ADMIN_STORAGE_BUCKET": str(bucket)}
    answer = await asyncio.to_thread(
        subprocess.run,
        command,
        env={**os.environ, **storage, "NSTANCE_ENCRYPTION_KEY": KEY},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


async def prepare_operator(kube: HttpKube, namespace: str, dir: Path, shards: dict[str, ShardWorld]) -> None:
    """As `docs/operator.md` says."""
    bucket = shards["lab-1"].bucket
    nonce, ca = await admin(bucket, "nonce", "--output", "-"), await admin(bucket, "ca", "show", "--pem")
    data = {"nonce.jwt": base64.b64encode(nonce.strip().encode()).decode()}
    await kube.create(kinds.SECRET, {"metadata": {"name": "nstance-operator-nonce"}, "data": data}, namespace=namespace)
    body = {"metadata": {"name": "nstance-cluster-ca"}, "data": {"ca.crt": ca}}
    await kube.create(kinds.CONFIG_MAP, body, namespace=namespace)
    await kube.create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": "nstance-capi-workload"}}, namespace=namespace)
    listed = "".join(
        f"  {name}:\n    registration_addr: 127.0.0.1:{shard.ports['registration']}\n"
        f"    operator_addr: 127.0.0.1:{shard.ports['operator']}\n"
        for name, shard in shards.items()
    )
    (dir / "config.yaml").write_text(f"cluster_id: demo\nshards:\n{listed}")


async def test_a_pool_is_spread_over_four_providers_and_a_dark_one_costs_only_its_shard(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        places = await open_places(stack)
        base = stack.enter_context(ports.claimed(len(places) + 1))
        shards = {
            name: ShardWorld(home=tmp_path, base=base + number * ports.BLOCK, name=name)
            for number, name in enumerate(places)
        }
        for name, shard in shards.items():
            stack.callback(shard.end)
            shard.configure(configuration(shard, places[name]))
            shard.start(f"server-{name}", env=places[name].environment)
        for shard in shards.values():
            await eventually(lambda shard=shard: asyncio.to_thread(shard.leader), seconds=SECONDS, interval=0.2)
        assert len({shard.bucket for shard in shards.values()}) == 1, "one bucket"
        kube, namespace = await stack.enter_async_context(kubernetes(tmp_path))
        await prepare_operator(kube, namespace, tmp_path, shards)
        last = base + len(places) * ports.BLOCK
        await stack.enter_async_context(operating(tmp_path, namespace, last, "--disable-webhooks"))

        async def scale(replicas: int) -> None:
            body = {"spec": {"replicas": replicas}}
            await kube.patch(kinds.MACHINE_POOL, "nstance-web", body, namespace=namespace)

        async def reach(size: int, *, without: str = "") -> None:
            for name, shard in shards.items():
                if name != without:
                    await eventually(
                        lambda name=name, shard=shard: has(shard, places[name], size),  # type: ignore[misc]
                        f"{size} instances of {name}",
                        seconds=SECONDS,
                        interval=0.5,
                    )

        async def is_imported() -> bool:
            pools = await kube.list(kinds.NSTANCE_MACHINE_POOL, namespace=namespace)
            return [sorted(each["spec"].get("shards", ())) for each in pools.items] == [sorted(shards)]

        await eventually(is_imported, "one pool over all shards", seconds=SECONDS, interval=0.2)
        await scale(2 * len(shards))
        await reach(2)
        for size, dark in enumerate(shards, start=3):
            before = set(await living(shards[dark]))
            places[dark].darken()
            await scale(size * len(shards))
            await reach(size, without=dark)
            assert before <= set(await living(shards[dark])), "nothing is replaced because nobody answers"
            places[dark].lighten()
            await reach(size)
            assert before <= set(await living(shards[dark])), "nothing was replaced"
