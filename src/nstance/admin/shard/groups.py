"""Groups of one shard: found by name, and changed without overwriting what others change at the same time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpclib.const import Status

from nstance.admin import errors, output
from nstance.admin.client import Client, ShardError
from nstance.v1 import operator_pb2

ATTEMPTS = 20  # of several concurrent writers only one succeeds each time
MAX_NAMES = 10  # in an error message

_FIELDS = ("template", "size", "instance_type", "subnet_pool", "drain_timeout")
_ROLLOUT_FIELDS = {  # from a command's names to the wire's
    "max_surge": "max_surge",
    "max_unavailable": "max_unavailable",
    "order": "update_order",
    "settle": "update_settle",
    "canary": "canary",
    "pause_after_canary": "pause_after_canary",
    "max_failures": "max_failures",
    "on_failure": "on_failure",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """The settings that a command changes. None: unchanged."""

    template: str | None = None
    size: int | None = None
    instance_type: str | None = None
    subnet_pool: str | None = None
    vars: Mapping[str, str]
    unset_vars: Sequence[str] = ()
    unset_size: bool = False
    unset_instance_type: bool = False
    drain_timeout: str | None = None
    max_surge: int | None = None
    max_unavailable: int | None = None
    order: str | None = None
    settle: str | None = None
    canary: int | None = None
    pause_after_canary: str | None = None
    max_failures: int | None = None
    on_failure: str | None = None
    load_balancers: Sequence[str] = ()
    args: str | None = None

    def apply(self, config: Any) -> None:
        for field in _FIELDS:
            value = getattr(self, field)
            if value is not None:
                setattr(config, field, value)
        config.vars.update(self.vars)
        for name in self.unset_vars:
            config.vars.pop(name, None)
        for field in self.unset:
            config.ClearField(field)
        rollout = {field: getattr(self, name) for name, field in _ROLLOUT_FIELDS.items()}
        if any(value is not None for value in rollout.values()):
            if not config.update_set:
                config.max_surge = 1
            config.update_set = True
            for field, value in rollout.items():
                if value is not None:
                    setattr(config, field, value)
        if self.load_balancers:
            config.load_balancers[:] = self.load_balancers
        if self.args is not None:
            config.args_json = self.args

    @property
    def unset(self) -> list[str]:
        """Settings to reset to the configuration file; vars are simply not sent any more."""
        return ["size"] * self.unset_size + ["instance_type"] * self.unset_instance_type

    @property
    def is_empty(self) -> bool:
        config = operator_pb2.GroupConfig()
        self.apply(config)
        # An empty text resets a setting to its default.
        texts = (self.template, self.instance_type, self.subnet_pool, self.drain_timeout, self.args)
        return config == operator_pb2.GroupConfig() and not (self.unset_vars or self.unset or "" in texts)


async def list_groups(client: Client) -> Sequence[Any]:
    found: Sequence[Any] = (await client.call("ListGroups")).groups
    return found


async def delete(client: Client, name: str, *, dry_run: bool, expected: str = "") -> Any:
    """Returns the plan of a dry run. A held group is not listed, so only the server knows whether it exists.
    `expected`: the etag that the group must still have."""
    try:
        etag = (await find_unchanged(client, name, expected)).etag
    except ShardError as unlisted:
        if unlisted.code is not Status.NOT_FOUND or expected:
            raise
        try:
            return (await client.call("DeleteGroup", key=name, dry_run=dry_run)).plan
        except ShardError as refused:
            raise unlisted if refused.code is Status.NOT_FOUND else refused from None
    return (await client.call("DeleteGroup", key=name, etag=etag, dry_run=dry_run)).plan


async def find(client: Client, name: str) -> Any:
    """The group's status. Raises ShardError with the names of existing groups."""
    found = await list_groups(client)
    for group in found:
        if group.key == name:
            return group
    names = [group.key for group in found]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    listed = f" (there are: {', '.join(names[:MAX_NAMES])}{more})" if names else " (there are no groups)"
    hint = errors.did_you_mean(name, names) or listed
    raise ShardError(f"there is no group {name}{hint}", Status.NOT_FOUND)


async def find_unchanged(client: Client, name: str, expected: str) -> Any:
    """The group's status, if it still has the etag `expected`; empty: whichever it has. Raises ShardError."""
    group = await find(client, name)
    if expected and group.etag != expected:
        raise ShardError(
            f"group {name} was changed in the meantime: expected etag {expected[:80]}, found {group.etag}",
            Status.ABORTED,
        )
    return group


async def warn_about_type(client: Client, instance_type: str | None) -> None:
    """Which types exist, only the provider knows; a type that nearly is one of another group's is probably a slip."""
    used = {
        name for group in await list_groups(client) for name in (group.instance_type, *group.instance_types) if name
    }
    if instance_type and instance_type not in used:
        near = errors.did_you_mean(instance_type, used)
        if near:
            output.warn([f"no group has the instance type {instance_type} yet{near}"])


async def create(client: Client, name: str, change: GroupChange, *, dry_run: bool) -> Any:
    if any(group.key == name for group in await list_groups(client)):
        raise ShardError(f"group {name} already exists; change it with `group update`", Status.ALREADY_EXISTS)
    config = operator_pb2.GroupConfig()
    change.apply(config)
    return await client.call("UpsertGroup", key=name, config=config, dry_run=dry_run)


async def change(
    client: Client,
    name: str,
    edit: Callable[[Any], None],
    *,
    dry_run: bool,
    unset: Sequence[str] = (),
    expected: str = "",
) -> Any:
    """Applies `edit` to the current settings, again if another client was faster, so only what it touches changes.
    `unset`: settings to reset to the configuration file. With an etag `expected`, another client must not be faster."""
    for attempt in range(ATTEMPTS):
        group = await find_unchanged(client, name, expected)
        config = operator_pb2.GroupConfig()
        config.CopyFrom(group.config)
        edit(config)
        try:
            return await client.call(
                "UpsertGroup", key=name, config=config, etag=group.etag, unset=unset, dry_run=dry_run
            )
        except ShardError as error:
            if error.code is not Status.ABORTED or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


async def plan(client: Client, name: str, change: GroupChange) -> Any:
    """For the group as it is, or after the change; with a template also for one that does not exist yet."""
    request = operator_pb2.PlanGroupRequest(key=name)
    try:
        group = await find(client, name)
    except ShardError as error:
        if error.code is not Status.NOT_FOUND or not change.template:
            raise
    else:
        if not change.is_empty:
            request.config.CopyFrom(group.config)
    if not change.is_empty:
        change.apply(request.config)
        request.unset.extend(change.unset)
    return await client.call("PlanGroup", request)


async def history(client: Client, name: str) -> Sequence[Any]:
    """Its revisions, newest first. Raises ShardError."""
    await find(client, name)
    found: Sequence[Any] = (await client.call("ListRevisions", key=name)).revisions
    return found
