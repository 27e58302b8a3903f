"""Whole servers on Google Cloud: real servers in this process, the stand-in as their cloud."""

import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

from component.whole_server import Json, World, config
from contracts.gcp_world import IMAGE
from nstance.model.ids import InstanceId
from nstance.model.instance import State
from support.eventually import eventually
from support.gcp.cloud import Cloud, google_cloud
from support.gcp.compute import Rules
from support.gcp.stand_in import REGION, ZONE

USERDATA = "{{ .Instance.ID }} {{ .Nonce }}"
LIVING = (State.PENDING, State.STARTING, State.RUNNING)


class GcpServers(World):
    def __init__(self, dir: Path, cloud: Cloud) -> None:
        self.google, self.stand_in, self.compute = cloud, cloud.stand_in, cloud.compute
        self.problems: list[str] = []
        self._interrupted: set[str] = set()
        super().__init__(dir, self.settings(0), agents=False)
        self.compute.on_made, self.compute.on_gone = self._on_made, self._on_gone

    def settings(self, size: int, **shard: Any) -> Json:
        made = config(
            groups={"default": {"web": {"template": "web", "size": size, "args": {"SourceImage": IMAGE}}}},
            infra={"provider": "google", "region": REGION, "zone": ZONE},
            subnet_pools={"main": ["subnet-1", "subnet-2"]},
            capacity_retry="2s",
            garbage_collection={"interval": "1s", "registration_timeout": "30m"},
            **shard,
        )
        made["templates"]["web"] |= {
            "instance_types": ["e2-small", "e2-medium"],
            "markets": ["spot", "on-demand"],
            "userdata": {"content": USERDATA},
            "files": {},
        }
        del made["templates"]["web"]["instance_type"]
        return made

    def open_provider(self, name: str) -> None:
        """The configuration names it."""

    async def resize(self, size: int, **shard: Any) -> None:
        self.configure(self.settings(size, **shard))
        for server in self.servers.values():
            if server.server.server is not None and not server.task.done():
                await server.active_config.refresh()

    def interrupt(self, name: str) -> None:
        self._interrupted.add(name)
        self.compute.preempt(name)

    async def settle(self, size: int, *, seconds: float = 600.0) -> None:
        """Wait for the size, by the records and by the stand-in's own books."""

        def is_settled() -> bool:
            return self._has(size) and self._compare() == (set(), set())

        try:
            await eventually(is_settled, seconds=seconds, interval=0.2 + size / 200)
        except AssertionError as late:
            leaders = [server for server in self.servers.values() if server.lead is not None]
            records = [
                (record.id, record.state.value, record.subnet)
                for server in leaders
                for record in server.shard.instances.values()
                if record.state is not State.DELETED
            ]
            leaked, lost = self._compare() if leaders else (set(), set())
            raise AssertionError(f"leaked {leaked}, lost {lost}, {len(leaders)} leaders, records {records}") from late
        assert not self.problems, self.problems

    def _has(self, size: int) -> bool:
        if not any(server.lead is not None for server in self.servers.values()):
            return False
        records = self.leader.shard.instances.values()
        alive = [record for record in records if record.state in LIVING]
        leaving = [record for record in records if record.state in (State.DRAINING, State.DELETING)]
        return len(alive) == size and not leaving and all(record.state is not State.PENDING for record in alive)

    def _compare(self) -> tuple[set[str], set[str]]:
        """VMs without a record, and records without their VM."""
        existing = set(self.compute.living())
        records = {str(r.id) for r in self.leader.shard.instances.values() if r.state in LIVING}
        return existing - records, records - existing

    def _on_made(self, name: str, instance: Json) -> None:
        if self.compute.made[name] > 1:
            self.problems.append(f"{name} was made {self.compute.made[name]} times")

    def _on_gone(self, name: str) -> None:
        if name in self._interrupted:
            return
        for server in self.servers.values():
            record = server.lead.shard.instances.get(InstanceId(name)) if server.lead is not None else None
            if record is not None and record.state in LIVING:
                self.problems.append(f"the VM of {name} was deleted while it was {record.state.value}")


@contextlib.asynccontextmanager
async def gcp_servers(dir: Path, rules: Rules | None = None) -> AsyncIterator[GcpServers]:
    async with google_cloud(rules) as cloud:
        with mock.patch.dict(os.environ, cloud.stand_in.environment()):
            async with GcpServers(dir, cloud) as world:
                yield world


def counted(world: GcpServers) -> Counter[str]:
    """What the schedule has asked of Google."""
    return Counter(
        {"inserts": world.stand_in.calls["compute.instances.insert"], "VMs": sum(world.compute.made.values())}
    )
