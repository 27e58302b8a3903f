"""Whole servers on AWS: real servers in this process, moto behind the strict stand-in as their cloud."""

import asyncio
import base64
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from component.whole_server import Json, World, config
from nstance.aws.encoding import entries
from nstance.clock import SystemClock
from nstance.dev.aws.books import Params
from nstance.dev.aws.moto import AMI, Moto
from nstance.dev.aws.rules import Rules
from nstance.dev.aws.stand_in import StandIn
from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Instance, State
from support.eventually import eventually
from support.moto_server import KEYS, REGION, fresh_moto, moto_call

TYPE = "m5.large"
USERDATA = "{{ .Instance.ID }} {{ .Nonce }}"  # enough for a light agent
WEB = GroupKey(TenantId("default"), GroupName("web"))
LIVING = (State.PENDING, State.STARTING, State.RUNNING)


class AwsServers(World):
    def __init__(self, dir: Path, url: str, stand_in: StandIn, subnets: list[str]) -> None:
        self.url, self.stand_in, self.subnets = url, stand_in, subnets
        self.machine = ""  # of the servers
        self.shard_settings: Json = {}
        self.template: Json = {}  # more of it than below
        self.others: set[str] = set()  # EC2 instances that are not Nstance's
        self.problems: list[str] = []
        self.launches: Counter[str] = Counter()  # living VMs of each instance, by the stand-in's own books
        self._ids: dict[str, str] = {}
        self._interrupted: set[str] = set()
        super().__init__(dir, self.settings(0), agents=False)
        stand_in.instances.on_launch, stand_in.instances.on_end = self._on_launch, self._on_end

    def settings(self, size: int, **shard: Any) -> Json:
        made = config(
            groups={"default": {"web": {"template": "web", "size": size, "args": {"ImageId": AMI}}}},
            infra={"provider": "aws", "region": REGION, "options": {"endpoint": self.stand_in.url}},
            subnet_pools={"main": self.subnets},
            capacity_retry="2s",
            garbage_collection={"interval": "2s", "registration_timeout": "30m"},
            **shard,
        )
        template = made["templates"]["web"] | {"userdata": {"content": USERDATA}, "files": {}, **self.template}
        if "instance_types" in template:
            del template["instance_type"]
        else:
            template["instance_type"] = TYPE
        made["templates"]["web"] = template
        return made

    def run_machine(self) -> str:
        """An EC2 instance for a server."""
        params = {"ImageId": AMI, "MinCount": "1", "MaxCount": "1", "InstanceType": TYPE, "SubnetId": self.subnets[0]}
        made = str(entries(moto_call(self.url, "RunInstances", params), "instancesSet")[0]["instanceId"])
        self.others.add(made)
        return made

    def leader_interface(self) -> Json:
        """An interface for the leader address, still attached to the machine of an earlier leader. The servers here run on
        one machine, and ask its metadata service who they are."""
        machine, earlier = self.run_machine(), self.run_machine()
        os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = self.stand_in.metadata_url(machine)  # restored with the keys
        made = moto_call(self.url, "CreateNetworkInterface", {"SubnetId": self.subnets[0]})["networkInterface"]
        attached = {"NetworkInterfaceId": made["networkInterfaceId"], "InstanceId": earlier, "DeviceIndex": "1"}
        moto_call(self.url, "AttachNetworkInterface", attached)
        self.machine = machine
        return {"ip": made["privateIpAddress"], "interface_id": made["networkInterfaceId"]}

    def holder(self, interface: str) -> str:
        """The machine that has it, by moto's own books."""
        found = moto_call(self.url, "DescribeNetworkInterfaces", {"NetworkInterfaceId.1": interface})
        return str((entries(found, "networkInterfaceSet")[0].get("attachment") or {}).get("instanceId", ""))

    def open_provider(self, name: str) -> None:
        """The configuration names it."""

    async def resize(self, size: int, **shard: Any) -> None:
        self.shard_settings |= shard
        self.configure(self.settings(size, **self.shard_settings))
        for server in self.servers.values():
            if server.server.server is not None and not server.task.done():
                await server.active_config.refresh()

    async def interrupt(self, instance: str) -> None:
        self._interrupted.add(instance)
        await self.stand_in.instances.interrupt(instance)

    async def settle(self, size: int, *, seconds: float = 600.0) -> None:
        """Wait for the size, by the records and by moto's own books: a VM that a person took away is noticed later."""

        async def is_settled() -> bool:
            if not self._has(size):
                return False
            existing = await self.stand_in.instances.existing()
            return self._has(size) and self._compare(existing) == (set(), set())

        try:
            await eventually(is_settled, seconds=seconds, interval=0.2 + size / 200)
        except AssertionError as late:
            records = Counter(record.state.value for record in self._records())
            leaked, lost = self._compare(await self.stand_in.instances.existing())
            last = Counter(action for action, _ in self.stand_in.books.calls[-500:])
            errors = {server.lead.shard.trend(WEB).last_error for server in self.servers.values() if server.lead}
            found = f"leaked {leaked}, lost {lost}, records {dict(records)}, last calls {dict(last)}, errors {errors}"
            raise AssertionError(found) from late
        assert not self.problems, self.problems  # two VMs of one instance would be among them

    def _records(self) -> list[Instance]:
        """The leader's. While nobody leads, for example after a crash, there are none."""
        leading = [server.lead for server in self.servers.values() if server.lead is not None]
        return list(leading[0].shard.instances.values()) if leading else []

    def _has(self, size: int) -> bool:
        records = self._records()
        alive = [record for record in records if record.state in LIVING]
        leaving = [record for record in records if record.state in (State.DRAINING, State.DELETING)]
        return len(alive) == size and not leaving and all(record.state is not State.PENDING for record in alive)

    def _compare(self, existing: Mapping[str, str]) -> tuple[set[str], set[str]]:
        """VMs without a record, and records without their VM."""
        records = {str(r.provider_id): str(r.id) for r in self._records() if r.state in LIVING}
        vms, known = {item for item in existing.items() if item[0] not in self.others}, records.items()
        return {id for id, _ in vms - known}, {id for id, _ in known - vms}

    def _on_launch(self, instance: str, params: Params) -> None:
        id = base64.b64decode(params.get("UserData", "")).decode().partition(" ")[0]
        self._ids[instance] = id
        self.launches[id] += 1
        if self.launches[id] > 1:
            self.problems.append(f"{id} has {self.launches[id]} VMs")

    def _on_end(self, instance: str) -> None:
        id = self._ids.get(instance, "")
        self.launches[id] -= 1
        if instance in self._interrupted:
            return
        for server in self.servers.values():
            record = server.lead.shard.instances.get(InstanceId(id)) if server.lead is not None else None
            if record is not None and record.state in LIVING:
                self.problems.append(f"the VM of {id} was deleted while it was {record.state.value}")


@contextlib.asynccontextmanager
async def aws_servers(dir: Path, rules: Rules | None = None, *, url: str = "") -> AsyncIterator[AwsServers]:
    """`url`: of an empty moto."""
    url = url or await asyncio.to_thread(fresh_moto)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, KEYS))  # as every AWS tool takes them
        moto = Moto(url, REGION)
        stack.push_async_callback(moto.close)
        stand_in = StandIn(moto, SystemClock(), rules)
        await stand_in.start()
        stack.push_async_callback(stand_in.close)
        # Not in the event loop: other servers run in it.
        found = entries(await asyncio.to_thread(moto_call, url, "DescribeSubnets"), "subnetSet")
        subnets = sorted(str(each["subnetId"]) for each in found)[:2]
        yield await stack.enter_async_context(AwsServers(dir, url, stand_in, subnets))
