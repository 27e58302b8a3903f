"""Random kills of operators, the API server, etcd and shard leaders while pools are scaled: at a real kube-apiserver.

    make kube-chaos KILLS=100 SEED=1

Two operators (processes, one leads) work between two shards of two servers each and an API server of their own. People scale
pools, create and delete pools, delete Machines, and pods order nodes. Meanwhile something is killed every second or two. Then
the kills end, and the clouds' own lists must show exactly the instances that Kubernetes asks for: none lost, leaked or
doubled, and no object that waits for its deletion. Instances that nobody touched are still the same ones.
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from component.operator_world import REAL, Cluster, operating
from component.whole_server import World, states
from nstance.kube import errors, kinds
from nstance.kube.kinds import Kind
from nstance.kube.port import Object
from nstance.providers.port import Status
from support import real_kube
from support.eventually import eventually

SHARDS = ("zone-a", "zone-b")
WEB, STEADY, JOBS = "nstance-web", "nstance-steady", "jobs"  # the first two are static
MOST = 6  # instances of a pool
PODS = 3
PAUSE_SECONDS = (0.3, 1.5)  # between two kills
ETCD_SECONDS = (0.5, 6.0)  # for which it is stopped
SETTLED_SECONDS = 240.0
AWAY = (errors.UnavailableError, errors.UnknownOutcomeError, errors.ThrottledError)
POOLS = (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL)
OBJECTS = (*POOLS, kinds.NSTANCE_SHARD_GROUP, kinds.MACHINE, kinds.NSTANCE_MACHINE)


@dataclass
class Chaos:
    cluster: Cluster
    programs: real_kube.Programs
    dice: random.Random
    operators: list[asyncio.subprocess.Process | None] = field(default_factory=lambda: [None, None])
    kills: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    serial: int = 0

    async def run(self, kills: int) -> None:
        for number in range(len(self.operators)):
            await self._start_operator(number)
        await self._settled(lambda: self._differences({"steady": 4, "web": 2}))
        await self._create_pool(JOBS)
        await self._order("keeper")
        await self._settled(lambda: self._differences({"steady": 4, "web": 2, "jobs": 2}, orders=1))
        before = self._instances("steady")
        people = asyncio.create_task(self._people())
        breaks: list[Callable[[], Awaitable[None]]] = [
            self._kill_operator,
            self._kill_api_server,
            self._stop_etcd,
            self._crash_leader,
        ]
        for number in range(kills):
            await self._revive_operators()
            kill = self.dice.choice(breaks)
            self.kills[kill.__name__.lstrip("_")] += 1
            await kill()
            if number % 10 == 9:
                print(f"{number + 1} of {kills} kills; {dict(self.acts)}", flush=True)
            await asyncio.sleep(self.dice.uniform(*PAUSE_SECONDS))
            if people.done():
                people.result()
        people.cancel()
        await asyncio.gather(people, return_exceptions=True)
        await self._judge(before)

    # ---- people

    async def _people(self) -> None:
        acts = [self._scale, self._scale, self._scale, self._delete_machine, self._pod, self._pool, self._busy_node]
        while True:
            act = self.dice.choice(acts)
            try:
                await act()
                self.acts[act.__name__.lstrip("_")] += 1
            except AWAY:
                self.acts["unanswered"] += 1
            except (errors.NotFoundError, errors.AlreadyExistsError, errors.ConflictError):
                pass
            await asyncio.sleep(self.dice.uniform(0.1, 0.5))

    async def _scale(self) -> None:
        await self._scale_to(self.dice.choice((WEB, JOBS)), self.dice.randint(0, MOST))

    async def _scale_to(self, pool: str, replicas: int) -> None:
        change = {"spec": {"replicas": replicas}}
        kube, namespace = self.cluster.kube, self.cluster.namespace
        await kube.patch(kinds.MACHINE_POOL, pool, change, namespace=namespace, subresource="scale")

    async def _delete_machine(self) -> None:
        found = [each["metadata"]["name"] for each in await self.cluster.all(kinds.MACHINE)]
        mine = sorted(set(found) & (self._instances("web") | self._instances("jobs")))
        if mine:
            await self.cluster.kube.delete(kinds.MACHINE, self.dice.choice(mine), namespace=self.cluster.namespace)

    async def _pod(self) -> None:
        """One that orders a node, or the end of one that did."""
        pods = [name for name in await self._pods() if name.startswith("order-")]
        if len(pods) < PODS and self.dice.random() < 0.6:
            self.serial += 1
            await self._order(f"order-{self.serial}")
        elif pods:
            await self.cluster.kube.delete(kinds.POD, self.dice.choice(pods), namespace=self.cluster.namespace)

    async def _order(self, name: str) -> None:
        await self.cluster.pod(name, annotations={"on-demand.nstance.dev/group": "steady"})

    async def _pool(self) -> None:
        pools = [each["metadata"]["name"] for each in await self.cluster.all(kinds.MACHINE_POOL)]
        short = sorted(name for name in pools if name.startswith("short-"))
        if not short:
            self.serial += 1
            await self._create_pool(f"short-{self.serial}")
        else:
            for kind in POOLS:
                with contextlib.suppress(errors.NotFoundError):
                    await self.cluster.kube.delete(kind, short[0], namespace=self.cluster.namespace)

    async def _create_pool(self, name: str) -> None:
        """Both halves, as `kubectl apply` would create them, again until both are there."""
        spec = {"group": name, "shards": list(SHARDS), "template": "web"}
        reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": kinds.NSTANCE_MACHINE_POOL.name, "name": name}
        inner = {
            "clusterName": "demo--default",
            "bootstrap": {"dataSecretName": ""},
            "infrastructureRef": reference,
        }
        outer = {"clusterName": "demo--default", "replicas": 2, "template": {"spec": inner}}
        for kind, body in ((kinds.NSTANCE_MACHINE_POOL, spec), (kinds.MACHINE_POOL, outer)):
            await self._insistently(lambda kind=kind, body=body: self._create(kind, name, body))  # type: ignore[misc]

    async def _create(self, kind: Kind, name: str, spec: Object) -> None:
        with contextlib.suppress(errors.AlreadyExistsError):
            body: Object = {"metadata": {"name": name}, "spec": spec}
            await self.cluster.kube.create(kind, body, namespace=self.cluster.namespace)

    async def _busy_node(self) -> None:
        """A pod on a node: its drain has something to evict."""
        if nodes := sorted(await self.cluster.nodes()):
            self.serial += 1
            await self.cluster.pod(f"busy-{self.serial}", node=self.dice.choice(nodes))

    async def _insistently(self, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await act()
            except AWAY:
                await asyncio.sleep(0.2)

    # ---- kills

    async def _start_operator(self, number: int) -> None:
        dir = self.cluster.dir
        self.cluster.configure(*SHARDS)
        with (dir / f"operator-{number}.log").open("ab") as log:
            self.operators[number] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "nstance.operator.main", f"--config={dir / 'operator.yaml'}"),
                *(f"--kubeconfig={self.programs.kubeconfig}", "--leader-elect", "--disable-webhooks"),
                "--health-probe-bind-address=0",
                stderr=log,
                env={**os.environ, "NSTANCE_NAMESPACE": self.cluster.namespace},
            )

    async def _kill_operator(self) -> None:
        number = self.dice.randrange(len(self.operators))
        await self.end_operator(number)
        await self._start_operator(number)

    async def end_operator(self, number: int) -> None:
        process = self.operators[number]
        if process is not None and process.returncode is None:
            process.kill()
        if process is not None:
            await process.wait()

    async def _kill_api_server(self) -> None:
        self.programs.kill("kube-apiserver")
        await asyncio.sleep(self.dice.uniform(0.0, 2.0))
        self.programs.start_server()
        await asyncio.to_thread(self.programs.wait_ready)

    async def _stop_etcd(self) -> None:
        self.programs.send("etcd", signal.SIGSTOP)
        try:
            await asyncio.sleep(self.dice.uniform(*ETCD_SECONDS))
        finally:
            self.programs.send("etcd", signal.SIGCONT)

    async def _crash_leader(self) -> None:
        world = self.cluster.shards[self.dice.choice(SHARDS)]
        leading = [name for name, server in world.servers.items() if server.lead is not None]
        for name in leading[:1]:
            await world.servers[name].crash()
            await world.start(name, lead=False)

    async def _revive_operators(self) -> None:
        """One that lost its lease has ended, as its Deployment would notice."""
        for number, process in enumerate(self.operators):
            if process is None or process.returncode is not None:
                await self._start_operator(number)

    # ---- the end

    async def _judge(self, before: set[str]) -> None:
        await self._settled(self._clear)
        for pool, replicas in ((WEB, 3), (JOBS, 2)):
            await self._insistently(lambda pool=pool, replicas=replicas: self._scale_to(pool, replicas))  # type: ignore[misc]
        await self._settled(lambda: self._differences({"steady": 4, "web": 3, "jobs": 2}, orders=1))
        lost = before - self._instances("steady")
        assert not lost, f"lost: {lost}"
        # Everything that can go, goes: no finalizer stays.
        for kind in POOLS:
            await self._delete(kind, JOBS)
        await self._delete(kinds.POD, "keeper")
        await self._settled(lambda: self._differences({"steady": 4, "web": 3}))

    async def _clear(self) -> str:
        """What is still there of what people created for a while. A deleted Machine shrinks its pool until it is gone."""
        for name in await self._pods():
            if name != "keeper":
                await self._delete(kinds.POD, name)
        for kind in POOLS:
            for each in await self.cluster.all(kind):
                if (name := each["metadata"]["name"]).startswith("short-"):
                    await self._delete(kind, name)
        return "; ".join(await self._ending())

    async def _ending(self) -> list[str]:
        ending = [each for each in await self._all() if each["metadata"].get("deletionTimestamp")]
        return [f"{each['kind']} {each['metadata']['name']} waits for its deletion" for each in ending]

    async def _differences(self, sizes: dict[str, int], *, orders: int = 0) -> str:
        """What is not as it should be. `orders`: instances of pods, in the group steady."""
        wrong = []
        vms: Counter[str] = Counter()
        for shard, world in self.cluster.shards.items():
            if not _is_led(world):
                return f"{shard} has no leader"
            living = {str(vm.id) for vm in world.cloud.vms() if vm.status is not Status.DELETED}
            vms.update(str(vm.id) for vm in world.cloud.vms() if vm.status is not Status.DELETED)
            instances = world.leader.shard.instances.values()
            records = {str(each.id) for each in instances if each.state.value not in ("deleted", "failed")}
            if living != records:
                wrong.append(f"VMs without a record, or records without one: {sorted(living ^ records)}")
        wrong += [f"{count} VMs of {id}" for id, count in vms.items() if count > 1]
        counted = {group: len(self._instances(group)) for group in sizes}
        if counted != {**sizes, "steady": sizes["steady"] + orders} or len(vms) != sum(counted.values()):
            wrong.append(f"{len(vms)} VMs, instances {counted}; expected {sizes} and {orders} of pods")
        for kind in (kinds.MACHINE, kinds.NSTANCE_MACHINE):
            named = {each["spec"].get("providerID", "").rpartition("/")[2] for each in await self.cluster.all(kind)}
            if named != vms.keys():
                wrong.append(f"{kind.name}s without a VM, or VMs without one: {sorted(named ^ vms.keys())}")
        nodes = await self.cluster.nodes()
        if nodes.keys() != vms.keys():
            wrong.append(f"Nodes without a VM, or VMs without one: {sorted(nodes.keys() ^ vms.keys())}")
        wrong += [f"{name} is cordoned" for name, node in nodes.items() if node["spec"].get("unschedulable")]
        for kind in POOLS:
            pools = {each["metadata"]["name"] for each in await self.cluster.all(kind)}
            if pools != {WEB, STEADY} | ({JOBS} & sizes.keys()):
                wrong.append(f"{kind.name}s {sorted(pools)}")
        return "; ".join([*wrong, *await self._ending()])

    async def _all(self) -> list[Object]:
        return [each for kind in OBJECTS for each in await self.cluster.all(kind)]

    async def _pods(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in await self.cluster.all(kinds.POD))

    async def _delete(self, kind: Kind, name: str) -> None:
        async def act() -> None:
            with contextlib.suppress(errors.NotFoundError):
                await self.cluster.kube.delete(kind, name, namespace=self.cluster.namespace)

        await self._insistently(act)

    def _instances(self, group: str) -> set[str]:
        """That run, in all shards that have a leader."""
        led = [world for world in self.cluster.shards.values() if _is_led(world)]
        return {str(id) for world in led for id, state in states(world, group).items() if state == "running"}

    async def _settled(self, find: Callable[[], Awaitable[str]]) -> None:
        """`find` gives what is still wrong."""
        wrong = "nothing was seen"

        async def is_right() -> bool:
            nonlocal wrong
            await self._revive_operators()
            try:
                wrong = await find()
            except AWAY as problem:
                wrong = str(problem)
            return not wrong

        try:
            await eventually(is_right, seconds=SETTLED_SECONDS, interval=0.5)
        except AssertionError:
            raise AssertionError(f"after {SETTLED_SECONDS:.0f} s: {wrong}") from None


def _is_led(world: World) -> bool:
    return any(server.lead is not None for server in world.servers.values())


async def play(kills: int, seed: int, dir: Path, programs: real_kube.Programs) -> Chaos:
    """The environment names the kubeconfig of the programs. Raises AssertionError with what is wrong."""
    groups = {shard: {"web": 1, "steady": 2} for shard in SHARDS}
    async with operating(dir, "real", groups, start=False, drain_timeout="3s") as cluster:
        cluster.is_cloud_deleting_nodes = False  # the operator has to
        for world in cluster.shards.values():
            await world.start("b", lead=False)
        chaos = Chaos(cluster, programs, random.Random(seed))
        try:
            await chaos.run(kills)
        finally:
            for number in range(len(chaos.operators)):
                await chaos.end_operator(number)
        return chaos


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all programs are ended
    real_kube.build_kubernetes()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nst-kube-chaos-") as folder, real_kube.running() as programs:
        os.environ[REAL] = str(programs.kubeconfig)
        try:
            chaos = asyncio.run(play(options.kills, options.seed, Path(folder), programs))
        except AssertionError as problem:
            print(f"seed {options.seed}: {problem}", flush=True)
            named = re.findall(r"[a-z]{3}-[0-9a-z]{26}", str(problem))
            for log in sorted(Path(folder).glob("operator-*.log")):
                lines = log.read_text().splitlines()
                about = [line for line in lines if any(each in line for each in named)]
                print(f"{log.name}:", *about, "…", *lines[-40:], sep="\n  ")
            return 1
    print(f"seed {options.seed}: nothing lost, leaked, doubled or stuck; {dict(chaos.kills)}; {dict(chaos.acts)}")
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
