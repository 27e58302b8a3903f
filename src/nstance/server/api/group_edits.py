"""What callers may do to groups: pure edits of the dynamic groups, each with its refusals.

A static group takes only size, instance type, vars and pausing. What is wrong with a value is INVALID_ARGUMENT with its
field; what the tenant has too much of is RESOURCE_EXHAUSTED; what the group is not made for is FAILED_PRECONDITION.
"""

from collections.abc import Mapping, Sequence

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.config import dynamic as dynamics
from nstance.config import jsonc
from nstance.config.dynamic import DynamicGroup, DynamicGroups, Stamp
from nstance.config.errors import ConfigError, Problem
from nstance.config.model.settings import Settings
from nstance.config.resolve import Resolved
from nstance.model.ids import DEFAULT_TENANT, GroupKey, TenantId
from nstance.server.api import group_writer, tenancy
from nstance.server.api.group_writer import Edit
from nstance.v1 import operator_pb2
from nstance.wire import status

MAX_ARGS = 256 * 1024
SHOWN = 5  # problems of one request
_UPDATE = {  # from the configuration's names to the wire's
    "order": "update_order",
    "settle": "update_settle",
    "canary": "canary",
    "pause_after_canary": "pause_after_canary",
    "max_failures": "max_failures",
    "on_failure": "on_failure",
}


def upsert(
    key: GroupKey,
    config: operator_pb2.GroupConfig,
    *,
    etag: str = "",
    unset: Sequence[str] = (),
    by: Stamp | None = None,
) -> Edit:
    """`unset`: what is given back to the configuration file. `by`: who asks, and when."""
    said = given(config)
    _check_unset(said, unset)

    def edit(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
        _check_tenant(settings, key.tenant)
        found = group_writer.mine(settings, dynamic, key)
        _check_etag(found, etag)
        desired = dict(said)
        before = dynamic.groups.get(key)
        if "size" not in desired and "size" not in unset and before is not None and before.size is not None:
            desired["size"] = before.size
        if "size" in unset and found is not None and found.file.size is None:
            raise status.failed_precondition(
                "unset: the configuration file says no size for this group: set one there first, or scale to 0"
            )
        _unset(desired, unset)
        _check_rolled_back(found, before, desired)
        if key in settings.groups:
            assert found is not None
            _check_static(found, desired)
        try:
            made = dynamics.group(key, desired)
        except ConfigError as error:
            raise invalid(error.problems) from None
        changed = dynamics.upsert(dynamic, key, made, by=by)
        if key in settings.groups and not changed.groups[key].written():
            changed = dynamics.delete(changed, key)  # it says nothing
        _check(settings, changed, key)
        return changed

    return edit


def delete(key: GroupKey, *, etag: str) -> Edit:
    def edit(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
        found = group_writer.mine(settings, dynamic, key)
        if found is None:
            raise tenancy.no_group()
        _check_etag(found, etag)
        if key in settings.groups:
            raise status.failed_precondition("this group is static: take it out of the configuration file instead")
        if found.group.paused:
            raise status.failed_precondition("this group is paused: resume it before it is deleted")
        return dynamics.delete(dynamic, key)

    return edit


def pause(tenant: TenantId, key: GroupKey | None, *, paused: bool, by: Stamp | None = None) -> Edit:
    """`key`: None for all groups of the tenant."""

    def edit(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
        if key is not None and group_writer.mine(settings, dynamic, key) is None:
            raise tenancy.no_group()
        known = {*settings.groups, *dynamic.groups} if key is None else {key}
        keys = sorted(k for k in known if k.tenant == tenant and group_writer.mine(settings, dynamic, k) is not None)
        return dynamics.pause(dynamic, keys, paused=paused, by=by)

    return edit


def _check_unset(said: Mapping[str, object], unset: Sequence[str]) -> None:
    for name in unset:
        kind, _, var = name.partition(".")
        if name not in ("size", "instance_type", "vars") and not (kind == "vars" and var):
            raise status.invalid("unset", "expected size, instance_type, vars or vars.NAME")
    if "size" in unset and "size" in said:
        raise status.invalid("unset", "expected a size to be set or unset, not both")


def _unset(desired: dict[str, object], unset: Sequence[str]) -> None:
    """What was read and sent back goes with it."""
    for name in unset:
        kind, _, var = name.partition(".")
        said = desired.get(kind)
        if var and isinstance(said, dict):
            desired["vars"] = {key: value for key, value in said.items() if key != var}
        elif not var:
            desired.pop(kind, None)


def given(config: operator_pb2.GroupConfig) -> dict[str, object]:
    """What a request says, in the words of the configuration. What it leaves out is left out."""
    said: dict[str, object] = {
        field: value
        for field in ("template", "instance_type", "subnet_pool", "drain_timeout")
        if (value := getattr(config, field))
    }
    if config.HasField("size"):
        said["size"] = config.size
    if config.vars:
        said["vars"] = dict(sorted(config.vars.items()))  # people read the file; the wire has no order
    if config.load_balancers:
        said["load_balancers"] = list(config.load_balancers)
    if config.update_set:
        said["update"] = {"max_surge": config.max_surge, "max_unavailable": config.max_unavailable} | {
            name: value
            for name, field in _UPDATE.items()
            if (value := getattr(config, field))  # empty or 0: the default
        }
    if config.args_json:
        said["args"] = _args(config.args_json)
    return said


def _args(text: str) -> object:
    try:
        return jsonc.read(text, source="args_json", limit=MAX_ARGS).value
    except ConfigError as error:
        raise status.invalid("config.args_json", error.problems[0].message) from None


def invalid(problems: tuple[Problem, ...], *, prefix: str = "") -> GRPCError:
    """With the field that each problem is about."""
    told = []
    for problem in problems[:SHOWN]:
        field = problem.path.removeprefix(prefix).lstrip(".")
        hint = f" (did you mean {problem.hint}?)" if problem.hint else ""
        told.append(f"{f'config.{field}' if field else 'config'}: {problem.message}{hint}")
    return status.refusal(Status.INVALID_ARGUMENT, "; ".join(told))


def _check_tenant(settings: Settings, tenant: TenantId) -> None:
    if tenant != DEFAULT_TENANT and tenant not in settings.tenants:
        raise status.failed_precondition(f"the tenant {tenant} is not in the shard's configuration any more")


def _check_etag(found: Resolved | None, etag: str) -> None:
    if etag and (found is None or found.etag != etag):
        raise status.aborted("the group was changed since you read it: read it again, then decide again")


def _check_rolled_back(found: Resolved | None, before: DynamicGroup | None, desired: Mapping[str, object]) -> None:
    """An earlier revision has the vars of its time: others would be accepted and have no effect."""
    if found is None or not found.group.rolled_back_from:
        return
    if desired.get("vars", {}) != (before.vars if before is not None else {}):
        raise status.failed_precondition(
            "config.vars: this group is rolled back, and has the vars of that revision: end that first, by a change of "
            "the configuration or with `group resume-rollout`"
        )


def _check_static(found: Resolved, desired: dict[str, object]) -> None:
    """Saying again what the configuration says anyway is no change. Takes it out of the wish."""
    same: Mapping[str, object] = {"template": found.group.template, "subnet_pool": found.group.subnet_pool}
    for field in ("template", "subnet_pool", "drain_timeout", "load_balancers", "update", "args"):
        if field in desired and desired.pop(field) != same.get(field):
            name = "args_json" if field == "args" else field
            raise status.failed_precondition(
                f"config.{name}: this group is static, and takes only size, instance_type and vars from the API"
            )


def _check(settings: Settings, changed: DynamicGroups, key: GroupKey) -> None:
    told = changed.groups.get(key, DynamicGroup())
    prefix = jsonc.show((key.tenant, key.name))
    problems = dynamics.check(settings, DynamicGroups({key: told})) if key in changed.groups else []
    own = tuple(problem for problem in problems if problem.path.startswith(prefix))
    if own:
        raise invalid(own, prefix=prefix)
    for problem in dynamics.check_quotas(settings, changed):
        if problem.path in (key.tenant, "groups"):
            raise status.exhausted(problem.message)
