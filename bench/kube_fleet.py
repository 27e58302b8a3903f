"""Row 38: the operator with 1,000 Machines and 50 pools over four shards: memory, processor time, requests, a scaled pool.

Real processes: four servers with light agents, dev-k8s with a Node for each instance, the operator. At rest each Node's
status is written every five minutes, as kubelets do it.
"""

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench import fleet, operator_site
from bench.fleet_server import TIMEOUT_SECONDS, resident
from bench.operator_site import NAMESPACE, Site, Sizes
from bench.rows import Row, percentile, spread
from nstance.config.addresses import Service
from nstance.kube import kinds
from nstance.v1 import operator_pb2 as pb

MB = 1e6
SHARDS = ("a", "b", "c", "d")
POOLS, SIZE = 50, 5  # pools, and the instances of each in a shard
MACHINES = POOLS * SIZE * len(SHARDS)
SCALES = 200
PAUSE_SECONDS = 0.3  # between two of them: the objects of instances that came or went follow
REST_SECONDS = 60.0
NODE_STATUS_SECONDS = 300.0
WRITERS = 16
IDLE_SHARE, IDLE_SECONDS = 0.1, 5.0  # less of a core for so long: nothing is left to do
REQUESTS = "nstance_operator_kubernetes_requests_total{"


async def run() -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as name:
        dir = Path(name)
        bucket = dir / "bucket"
        async with contextlib.AsyncExitStack() as stack:
            shards = {}
            for number, shard in enumerate(SHARDS):
                serving = fleet.serving(
                    fleet.Setup(groups=POOLS, size=SIZE, shard=shard, bucket=str(bucket), first_vm=number * MACHINES)
                )
                server = await stack.enter_async_context(serving)
                await server.connect_all()
                port = server.settings["base"] + list(Service).index(Service.REGISTRATION)
                shards[shard] = f"127.0.0.1:{port}"
            site = await stack.enter_async_context(operator_site.running(dir, bucket, shards))
            sizes = await stack.enter_async_context(site.observe())
            await _create_nodes(site, sizes)
            await _wait_machines(site)
            await _wait_idle(site.operator_pid)
            for row in await _rest(site):
                yield row
            yield await _scales(site, sizes)
            yield Row(
                number="38",
                what=f"operator memory, {MACHINES:,} Machines and {POOLS} pools over {len(SHARDS)} shards",
                value=resident(site.operator_pid) / MB,
                unit="MB",
                goal=150.0,
                detail=f"after {SCALES} scaled pools",
            )


async def _create_nodes(site: Site, sizes: Sizes) -> None:
    def instances() -> list[pb.InstanceEvent]:
        links = [sizes.links.get(shard) for shard in SHARDS]
        return [event for link in links if link is not None for event in link.instances.values()]

    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(instances()) < MACHINES:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    names = iter(instances())

    async def create() -> None:
        for event in names:
            metadata = {"name": event.instance_id, "labels": {"nstance.dev/instance-id": event.instance_id}}
            await site.kube.create(kinds.NODE, {"metadata": metadata, "spec": {"providerID": event.provider_id}})

    await asyncio.gather(*(create() for _ in range(WRITERS)))


async def _wait_machines(site: Site) -> None:
    """Each has its Node."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            found = (await site.kube.list(kinds.MACHINE, namespace=NAMESPACE)).items
            if sum("nodeRef" in each.get("status", {}) for each in found) == MACHINES:
                return
            await asyncio.sleep(1.0)


async def _wait_idle(pid: int) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            before = _processor_seconds(pid)
            await asyncio.sleep(IDLE_SECONDS)
            if _processor_seconds(pid) - before < IDLE_SHARE * IDLE_SECONDS:
                return


async def _rest(site: Site) -> tuple[Row, Row]:
    kubelets = asyncio.create_task(_write_node_statuses(site))
    try:
        pid, began, before = site.operator_pid, time.monotonic(), await asyncio.to_thread(_requests, site)
        used = _processor_seconds(pid)
        await asyncio.sleep(REST_SECONDS)
        used, seconds = _processor_seconds(pid) - used, time.monotonic() - began
        after = await asyncio.to_thread(_requests, site)
    finally:
        kubelets.cancel()
        await asyncio.gather(kubelets, return_exceptions=True)
    made = {name: count - before.get(name, 0.0) for name, count in after.items()}
    return Row(
        number="38",
        what="the same: processor time at rest",
        value=100 * used / seconds,
        unit="% of a core",
        goal=2.0,
        detail=f"during {seconds:.0f} s; every {NODE_STATUS_SECONDS:.0f} s each Node's status is written",
    ), Row(
        number="38",
        what="the same: requests to Kubernetes at rest",
        value=60 * sum(made.values()) / seconds,
        unit="per minute",
        goal=150.0,
        detail=", ".join(f"{count:.0f} {name}" for name, count in sorted(made.items()) if count),
    )


async def _write_node_statuses(site: Site) -> None:
    nodes = [each["metadata"]["name"] for each in (await site.kube.list(kinds.NODE)).items]
    for number, node in enumerate(itertools.cycle(nodes)):
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"beat {number}"}
        change = {"status": {"conditions": [condition]}}
        await site.kube.patch(kinds.NODE, node, change, subresource="status")
        await asyncio.sleep(NODE_STATUS_SECONDS / len(nodes))


async def _scales(site: Site, sizes: Sizes) -> Row:
    """One pool after the other: an instance more in each shard, then one less."""
    took = []
    for number in range(SCALES):
        size = SIZE + (number + 1) % 2
        group = f"g{number // 2 % POOLS}"
        sizes.clear()
        began = await site.scale(f"nstance-{group}", size * len(SHARDS))
        took.append(1000 * (await sizes.wait(group, dict.fromkeys(SHARDS, size)) - began))
        await asyncio.sleep(PAUSE_SECONDS)
    return Row(
        number="38",
        what="the same: one pool scaled → all its shards have it, p99",
        value=percentile(took, 0.99),
        unit="ms",
        goal=150.0,
        detail=spread(took, "ms"),
    )


def _requests(site: Site) -> dict[str, float]:
    """By method."""
    found: dict[str, float] = {}
    for name, value in site.metrics().items():
        if name.startswith(REQUESTS):
            method = name.partition('method="')[2].partition('"')[0]
            found[method] = found.get(method, 0.0) + value
    return found


def _processor_seconds(pid: int) -> float:
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9
