"""Groups of one shard: found by name, and changed without undoing what somebody else changes at the same time."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpclib.const import Status

from nstance.admin.client import Client, Refusal
from nstance.v1 import operator_pb2

ATTEMPTS = 20  # of several writers at once only one gets through each time


_UPDATE = {  # from a command's names to the wire's
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
class Wish:
    """What a command says of a group. None: nothing."""

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
        for field in ("template", "size", "instance_type", "subnet_pool", "drain_timeout"):
            value = getattr(self, field)
            if value is not None:
                setattr(config, field, value)
        config.vars.update(self.vars)
        for name in self.unset_vars:
            config.vars.pop(name, None)
        for field in self.unset:
            config.ClearField(field)
        said = {field: getattr(self, name) for name, field in _UPDATE.items() if getattr(self, name) is not None}
        if said:
            if not config.update_set:
                config.max_surge = 1
            config.update_set = True
            for field, value in said.items():
                setattr(config, field, value)
        if self.load_balancers:
            config.load_balancers[:] = self.load_balancers
        if self.args is not None:
            config.args_json = self.args

    @property
    def unset(self) -> list[str]:
        """Settings to give back to the configuration file; vars are simply not sent any more."""
        return ["size"] * self.unset_size + ["instance_type"] * self.unset_instance_type

    @property
    def empty(self) -> bool:
        said = operator_pb2.GroupConfig()
        self.apply(said)
        return said == operator_pb2.GroupConfig() and not (self.unset_vars or self.unset or self._resets)

    @property
    def _resets(self) -> bool:
        """An empty text gives a setting back to its default."""
        texts = (self.template, self.instance_type, self.subnet_pool, self.drain_timeout, self.args)
        return any(text == "" for text in texts)


async def everything(client: Client) -> Sequence[Any]:
    found: Sequence[Any] = (await client.call("ListGroups")).groups
    return found


async def find(client: Client, name: str) -> Any:
    """The group's status. Raises Refusal with the names that there are."""
    found = await everything(client)
    for group in found:
        if group.key == name:
            return group
    names = [group.key for group in found]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {_few(names)}" if names else "there are no groups"
    raise Refusal(f"there is no group {name} ({hint})", Status.NOT_FOUND)


def _few(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


async def create(client: Client, name: str, desired: Wish, *, dry_run: bool) -> Any:
    if any(group.key == name for group in await everything(client)):
        raise Refusal(f"group {name} exists already; change it with `group update`", Status.ALREADY_EXISTS)
    config = operator_pb2.GroupConfig()
    desired.apply(config)
    return await client.call("UpsertGroup", key=name, config=config, dry_run=dry_run)


async def change(
    client: Client, name: str, edit: Callable[[Any], None], *, dry_run: bool, unset: Sequence[str] = ()
) -> Any:
    """Only what `edit` touches changes: it is applied to what the API has set before, and again if somebody else was
    faster. `unset`: what is given back to the config file."""
    for attempt in range(ATTEMPTS):
        group = await find(client, name)
        config = operator_pb2.GroupConfig()
        config.CopyFrom(group.config)
        edit(config)
        try:
            return await client.call(
                "UpsertGroup", key=name, config=config, etag=group.etag, unset=unset, dry_run=dry_run
            )
        except Refusal as refusal:
            if refusal.code is not Status.ABORTED or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


async def plan(client: Client, name: str, desired: Wish) -> Any:
    """Of the group as it is, or as it would be; with a template also of one that is not there yet."""
    request = operator_pb2.PlanGroupRequest(key=name)
    try:
        group = await find(client, name)
    except Refusal as refusal:
        if refusal.code is not Status.NOT_FOUND or not desired.template:
            raise
    else:
        if not desired.empty:
            request.config.CopyFrom(group.config)
    if not desired.empty:
        desired.apply(request.config)
        request.unset.extend(desired.unset)
    return await client.call("PlanGroup", request)
