"""Empties shards: every group is scaled to zero and every other instance is deleted, then all of it is waited for.

The trap: somebody may scale a group up meanwhile, such as an operator in Kubernetes. That ends the wait with an error: it
would never end by itself.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.admin import errors
from nstance.admin.client import Client
from nstance.admin.shard import fanout, groups, instances, overview, unknown_vms
from nstance.admin.shard.records import Record
from nstance.clock import Clock
from nstance.model.ids import ShardId

POLL_SECONDS = 1.0
CONCURRENT_CALLS = 16


@dataclass(frozen=True, slots=True)
class Contents:
    """What a shard has, as far as the client's tenant sees it."""

    shard: ShardId
    tenant: str
    groups: Sequence[Any]
    instances: Sequence[Any]
    unknown_vms: Sequence[Any]

    @property
    def scaled_up(self) -> list[Any]:
        return [group for group in self.groups if group.size or group.paused]

    @property
    def on_demand(self) -> list[Any]:
        """Instances that do not belong to a group's size."""
        return [each for each in self.instances if each.on_demand and each.state not in overview.LEAVING]

    @property
    def held_groups(self) -> list[str]:
        """Groups that are not configured any more and whose instances are kept until somebody decides."""
        known = {group.key for group in self.groups}
        staying = (each for each in self.instances if each.state not in overview.LEAVING and not each.on_demand)
        return sorted({each.group for each in staying} - known)

    @property
    def is_empty(self) -> bool:
        return not (self.scaled_up or self.instances or self.unknown_vms)

    def plan(self, *, release_unknown: bool) -> list[Record]:
        members = Counter(each.group for each in self.instances if not each.on_demand)

        def row(action: str, *, group: str = "", instance: str = "", count: int = 1) -> Record:
            return {
                "shard": self.shard,
                "tenant": self.tenant,
                "group": group or None,
                "instance_id": instance or None,
                "instances": count,
                "action": action,
            }

        rows = []
        for group in self.groups:
            if group in self.scaled_up or members[group.key]:
                scale = f"scale from {group.size} to 0" if group.size else "wait"
                paused = ", resume" if group.paused else ""
                rows.append(row(scale + paused, group=group.key, count=members[group.key]))
        rows += [row("delete the held group", group=name, count=members[name]) for name in self.held_groups]
        rows += [
            row("delete the on-demand instance", group=each.group, instance=each.instance_id) for each in self.on_demand
        ]
        unknown = "delete the unknown VM" if release_unknown else "none: the unknown VM stays (--release-unknown)"
        rows += [row(unknown, group=each.group, instance=each.instance_id) for each in self.unknown_vms]
        return rows


async def look(client: Client) -> Contents:
    return Contents(
        shard=client.shard,
        tenant=client.identity.who.tenant,
        groups=await groups.list_groups(client),
        instances=await instances.list_instances(client),
        unknown_vms=await unknown_vms.list_unknown_vms(client),
    )


async def empty(client: Client, contents: Contents, *, release_unknown: bool) -> None:
    """Groups first, so that no instance that is deleted is replaced."""
    zero = groups.GroupChange(size=0, vars={})
    for group in contents.scaled_up:
        if group.size:
            await groups.change(client, group.key, zero.apply, dry_run=False)
        if group.paused:
            await client.call("ResumeGroup", key=group.key)
    for name in contents.held_groups:
        await groups.delete(client, name, dry_run=False)
    slots = asyncio.Semaphore(CONCURRENT_CALLS)

    async def call(rpc: str, id: str) -> None:
        async with slots:
            await client.call(rpc, instance_id=id)

    unknown = contents.unknown_vms if release_unknown else ()
    await asyncio.gather(
        *(call("DeleteInstance", each.instance_id) for each in contents.on_demand),
        *(call("ReleaseInstance", each.instance_id) for each in unknown),
    )


async def until_empty(
    clients: Sequence[Client],
    *,
    release_unknown: bool,
    within: float,
    on_progress: Callable[[str], None],
    clock: Clock,
) -> None:
    """A shard that does not answer counts as not empty and is asked again. Raises CommandError with what is left."""
    deadline = clock.monotonic() + within
    while True:
        answers = await fanout.call_each(clients, look)
        for shard, contents in answers.results:
            if again := [group.key for group in contents.groups if group.size]:
                raise errors.CommandError(
                    f"shard {shard}: somebody has scaled {', '.join(again)} up again; "
                    "stop what does so (such as an operator in Kubernetes), then repeat the command"
                )
        left = [_describe(contents) for _, contents in answers.results if not contents.is_empty]
        left += [f"shard {shard}: {errors.explain(error)}" for shard, error in answers.failures]
        if not left:
            return
        on_progress("; ".join(left))
        remaining = deadline - clock.monotonic()
        is_waiting = answers.failures or any(found.instances or found.scaled_up for _, found in answers.results)
        if not is_waiting and not release_unknown:
            raise errors.CommandError(f"unknown VMs are left: {'; '.join(left)}; delete them with --release-unknown")
        if remaining <= 0:
            raise errors.CommandError(f"not empty after {within:g} s: {'; '.join(left)}")
        await clock.sleep(min(POLL_SECONDS, remaining))


def _describe(contents: Contents) -> str:
    states = Counter(each.state for each in contents.instances)
    parts = [f"{count} {state}" for state, count in sorted(states.items())]
    if contents.unknown_vms:
        parts.append(f"{len(contents.unknown_vms)} unknown VMs")
    paused = [group.key for group in contents.scaled_up]
    if paused:
        parts.append(f"{', '.join(paused)} paused")
    return f"shard {contents.shard}: {', '.join(parts)}"
