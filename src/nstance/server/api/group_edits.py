"""Edits of dynamic groups that the API offers, as pure functions with their checks.

A static group accepts only size, instance type, vars and pausing. A wrong value is INVALID_ARGUMENT with its field, an
exceeded quota RESOURCE_EXHAUSTED, and an edit that the group does not allow FAILED_PRECONDITION.
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

MAX_ARGS_BYTES = 256 * 1024
MAX_SHOWN_PROBLEMS = 5
_UPDATE_FIELDS = {  # from the names in the configuration to those in the API
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
    """`unset`: fields that follow the configuration file again. `by`: the caller and the time."""
    requested = requested_fields(config)
    _check_unset(requested, unset)

    def edit(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
        _check_tenant(settings, key.tenant)
        found = group_writer.resolve_group(settings, dynamic, key)
        check_etag(found, etag)
        desired = dict(requested)
        before = dynamic.groups.get(key)
        if "size" not in desired and "size" not in unset and before is not None and before.size is not None:
            desired["size"] = before.size
        if "size" in unset and found is not None and found.file.size is None:
            raise status.failed_precondition(
                "unset: the configuration file has no size for this group: set one there first, or scale to 0"
            )
        _remove_unset(desired, unset)
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
            changed = dynamics.delete(changed, key)  # nothing is set any more
        _check(settings, changed, key)
        return changed

    return edit


def delete(key: GroupKey, *, etag: str) -> Edit:
    def edit(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
        found = group_writer.resolve_group(settings, dynamic, key)
        if found is None:
            raise tenancy.no_group()
        check_etag(found, etag)
        if key in settings.groups:
            raise status.failed_precondition("this group is static: remove it from the configuration file instead")
        if found.group.paused:
            raise status.failed_precondition("this group is paused: resume it before you delete it")
        return dynamics.delete(dynamic, key)

    return edit


def pause(tenant: TenantId, key: GroupKey | None, *, paused: bool, by: Stamp | None = None) -> Edit:
    """`key`: None for all groups of the tenant."""

    def edit(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
        if key is not None and group_writer.resolve_group(settings, dynamic, key) is None:
            raise tenancy.no_group()
        known = {*settings.groups, *dynamic.groups} if key is None else {key}
        keys = sorted(
            k for k in known if k.tenant == tenant and group_writer.resolve_group(settings, dynamic, k) is not None
        )
        return dynamics.pause(dynamic, keys, paused=paused, by=by)

    return edit


def check_etag(found: Resolved | None, etag: str) -> None:
    if etag and (found is None or found.etag != etag):
        raise status.aborted("the group has changed since you read it: read it again, then retry")


def _check_unset(requested: Mapping[str, object], unset: Sequence[str]) -> None:
    for name in unset:
        kind, _, var = name.partition(".")
        if name not in ("size", "instance_type", "vars") and not (kind == "vars" and var):
            raise status.invalid("unset", "expected size, instance_type, vars or vars.NAME")
    if "size" in unset and "size" in requested:
        raise status.invalid("unset", "expected a size to be set or unset, not both")


def _remove_unset(desired: dict[str, object], unset: Sequence[str]) -> None:
    """A caller may send back values that it has read and wants to unset."""
    for name in unset:
        kind, _, var = name.partition(".")
        vars = desired.get(kind)
        if var and isinstance(vars, dict):
            desired["vars"] = {key: value for key, value in vars.items() if key != var}
        elif not var:
            desired.pop(kind, None)


def requested_fields(config: operator_pb2.GroupConfig) -> dict[str, object]:
    """The fields that a request sets, with their names in the configuration."""
    requested: dict[str, object] = {
        field: value
        for field in ("template", "instance_type", "subnet_pool", "drain_timeout")
        if (value := getattr(config, field))
    }
    if config.HasField("size"):
        requested["size"] = config.size
    if config.vars:
        requested["vars"] = dict(sorted(config.vars.items()))  # people read the file; protobuf has no order
    if config.load_balancers:
        requested["load_balancers"] = list(config.load_balancers)
    if config.update_set:
        requested["update"] = {"max_surge": config.max_surge, "max_unavailable": config.max_unavailable} | {
            name: value
            for name, field in _UPDATE_FIELDS.items()
            if (value := getattr(config, field))  # empty or 0: the default
        }
    if config.args_json:
        requested["args"] = _args(config.args_json)
    return requested


def _args(text: str) -> object:
    try:
        return jsonc.read(text, source="args_json", limit=MAX_ARGS_BYTES).value
    except ConfigError as error:
        raise status.invalid("config.args_json", error.problems[0].message) from None


def invalid(problems: tuple[Problem, ...], *, prefix: str = "") -> GRPCError:
    """Names the field of each problem."""
    messages = []
    for problem in problems[:MAX_SHOWN_PROBLEMS]:
        field = problem.path.removeprefix(prefix).lstrip(".")
        hint = f" (did you mean {problem.hint}?)" if problem.hint else ""
        messages.append(f"{f'config.{field}' if field else 'config'}: {problem.message}{hint}")
    return status.refusal(Status.INVALID_ARGUMENT, "; ".join(messages))


def _check_tenant(settings: Settings, tenant: TenantId) -> None:
    if tenant != DEFAULT_TENANT and tenant not in settings.tenants:
        raise status.failed_precondition(f"the tenant {tenant} is not in the shard's configuration any more")


def _check_rolled_back(found: Resolved | None, before: DynamicGroup | None, desired: Mapping[str, object]) -> None:
    """A rolled-back group has the vars of its revision: new ones would be accepted and have no effect."""
    if found is None or not found.group.rolled_back_from:
        return
    if desired.get("vars", {}) != (before.vars if before is not None else {}):
        raise status.failed_precondition(
            "config.vars: this group is rolled back and has the vars of that revision: end the rollback first, with "
            "`group resume-rollout` or a change of the configuration"
        )


def _check_static(found: Resolved, desired: dict[str, object]) -> None:
    """Removes fields that only repeat the configuration, and rejects all others that a static group does not accept."""
    configured: Mapping[str, object] = {"template": found.group.template, "subnet_pool": found.group.subnet_pool}
    for field in ("template", "subnet_pool", "drain_timeout", "load_balancers", "update", "args"):
        if field in desired and desired.pop(field) != configured.get(field):
            name = "args_json" if field == "args" else field
            raise status.failed_precondition(
                f"config.{name}: this group is static and accepts only size, instance_type and vars from the API"
            )


def _check(settings: Settings, changed: DynamicGroups, key: GroupKey) -> None:
    group = changed.groups.get(key)
    prefix = jsonc.show((key.tenant, key.name))
    problems = dynamics.check(settings, DynamicGroups({key: group})) if group is not None else []
    own = tuple(problem for problem in problems if problem.path.startswith(prefix))
    if own:
        raise invalid(own, prefix=prefix)
    for problem in dynamics.check_quotas(settings, changed):
        if problem.path in (key.tenant, "groups"):
            raise status.exhausted(problem.message)
