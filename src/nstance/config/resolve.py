"""Resolves groups: merges defaults < template < group < values from the API, and computes the hashes.

A rolled-back group uses the spec of an earlier revision until the configuration asks for another revision than the one it
was rolled back from. `userdata` of the defaults counts only if the template has none. An on-demand instance adds one more
layer (`resolve_on_demand`), and `resolve_revision` gives the group as an earlier revision.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from nstance.config import dynamic as dynamics
from nstance.config import hashes
from nstance.config.dynamic import DynamicGroup, DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.merge import merge
from nstance.config.model.readiness import CheckSpec
from nstance.config.model.settings import Settings
from nstance.config.model.workload import (
    STOP,
    Certificate,
    CertificateFile,
    FileSpec,
    GroupConfig,
    Template,
    Update,
    Userdata,
)
from nstance.config.overrides import FileValues
from nstance.config.revision_spec import RevisionSpec
from nstance.model.group import Group, OnFailure, Preference, UpdateOrder
from nstance.model.ids import GroupKey, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A group with everything that its instances are made of, before templates are rendered."""

    group: Group
    arch: str
    args: Mapping[str, object]
    vars: Mapping[str, str]
    userdata: Userdata | None
    files: Mapping[str, FileSpec]
    certificates: Mapping[str, Certificate]  # of its certificate files
    checks: Mapping[str, CheckSpec]
    checks_hash: str  # empty: no checks
    spec: RevisionSpec
    etag: str  # changes with anything that the API can show or set
    file: FileValues  # its values in the configuration file


def resolve_groups(settings: Settings, dynamic: DynamicGroups) -> Mapping[GroupKey, Resolved]:
    """All groups, static and dynamic. Raises ConfigError if a dynamic one does not fit the settings."""
    dynamic = dynamics.prune(settings, dynamic)
    problems = dynamics.check(settings, dynamic)
    if problems:
        raise ConfigError(tuple(problems))
    keys = sorted({*settings.groups, *dynamic.groups})
    return {key: resolve_group(settings, key, dynamic.groups.get(key)) for key in keys}


def resolve_group(settings: Settings, key: GroupKey, from_api: DynamicGroup | None) -> Resolved:
    """One valid group. `from_api`: a dynamic group, or the overrides of a static one."""
    static = settings.groups.get(key)
    api = from_api or DynamicGroup()
    base = static or api
    configured = _configured_spec(settings, key, api)
    rollback = api.rollback
    if rollback is not None and rollback.instead_of != configured.infra_hash:
        rollback = None  # the configuration has changed since the rollback
    spec = RevisionSpec(rollback.template, rollback.certificates) if rollback is not None else configured
    update = base.update or Update()
    pause = update.pause_after_canary
    file_template = settings.templates[base.template or ""]
    file = FileValues(
        size=_first(static.size if static else None, file_template.size),
        instance_type=", ".join(_instance_types(static, file_template)),
        own_instance_type=", ".join(_instance_types(static)),
        vars={**settings.defaults.vars, **file_template.vars, **(static.vars if static else {})},
    )
    drain_timeout = settings.shard.default_drain_timeout if base.drain_timeout is None else base.drain_timeout
    group = Group(
        key=key,
        size=_first(api.size, base.size, file_template.size) or 0,
        template=base.template or "",
        kind=Kind(spec.template.kind),
        prefer=Preference((static.prefer if static else None) or file_template.prefer),
        capacity_retry=(static.capacity_retry if static else None) or settings.shard.capacity_retry,
        drain_timeout=drain_timeout,
        load_balancers=base.load_balancers or (),
        max_surge=update.max_surge,
        max_unavailable=update.max_unavailable,
        order=UpdateOrder(update.order),
        settle=update.settle,
        canary=update.canary,
        pause_after_canary=pause if isinstance(pause, float) else None,
        stop_after_canary=pause == STOP,
        max_failures=update.max_failures,
        on_failure=OnFailure(update.on_failure),
        changed_by=rollback.by if rollback is not None else _changed_by(api, file),
        rolled_back_from=rollback.instead_of if rollback is not None else "",
        static=static is not None,
        overridden=static is not None and from_api is not None,
        paused=api.paused,
    )
    group = _with_spec(settings, group, spec)
    etag = hashes.digest(dataclasses.asdict(dataclasses.replace(group, overridden=False)))
    return _resolved(group, spec, etag=etag, file=file)


def resolve_revision(settings: Settings, current: Resolved, spec: RevisionSpec) -> Resolved:
    """The group as an earlier revision: its size and its settings for rollouts are those of today."""
    return _resolved(_with_spec(settings, current.group, spec), spec, etag=current.etag, file=current.file)


def _with_spec(settings: Settings, group: Group, spec: RevisionSpec) -> Group:
    template, shard = spec.template, settings.shard
    files = hashes.runtime_hash(vars=template.vars, files=template.files, certificates=spec.certificates)
    return dataclasses.replace(
        group,
        kind=Kind(template.kind),
        instance_types=_instance_types(template),
        markets=template.markets or (),
        subnet_pool=template.subnet_pool or "",
        subnets=shard.subnet_pools.get(template.subnet_pool or "", ()),
        infra_hash=spec.infra_hash,
        runtime_hash=files,
        parts_hash=hashes.parts_hash(files, hashes.checks_hash(template.checks.by_name)),
        registration_timeout=template.registration_timeout or shard.garbage_collection.registration_timeout,
        ready_timeout=template.ready_timeout,
        unhealthy_after=template.checks.unhealthy_after,
        vars=template.vars,
    )


def _resolved(group: Group, spec: RevisionSpec, *, etag: str, file: FileValues) -> Resolved:
    template = spec.template
    return Resolved(
        group=group,
        arch=template.arch,
        args=template.args,
        vars=template.vars,
        userdata=template.userdata,
        files=template.files,
        certificates=spec.certificates,
        spec=spec,
        checks=template.checks.by_name,
        checks_hash=hashes.checks_hash(template.checks.by_name),
        etag=etag,
        file=file,
    )


def _configured_spec(settings: Settings, key: GroupKey, api: DynamicGroup) -> RevisionSpec:
    """What the configuration asks for, whether or not the group is rolled back."""
    static = settings.groups.get(key)
    base = static or api
    template = settings.templates[base.template or ""]
    layers: tuple[GroupConfig | DynamicGroup, ...] = (static, api) if static else (api,)
    instance_types = _instance_types(api, base, template)
    merged = template.model_copy(
        update={
            "vars": merge(settings.defaults.vars, template.vars, *(layer.vars for layer in layers)),
            "args": merge(settings.defaults.args, template.args, *(layer.args for layer in layers)),
            "userdata": template.userdata or settings.defaults.userdata,
            # One type is always written as `instance_type`: a list of one makes the same instances.
            "instance_type": instance_types[0] if len(instance_types) == 1 else "",
            "instance_types": instance_types if len(instance_types) > 1 else None,
            "markets": (static.markets if static else None) or template.markets,
            "subnet_pool": _subnet_pool(settings, base, template, is_static=static is not None),
        }
    )
    certificates = {
        file.template: settings.certificates[file.template]
        for file in template.files.values()
        if isinstance(file, CertificateFile)
    }
    return RevisionSpec(merged, certificates)


def resolve_on_demand(
    resolved: Resolved, *, instance_type: str = "", vars: Mapping[str, str] | None = None
) -> Resolved:
    """The group with the values of one request. Its etag stays the same."""
    own_vars = {**resolved.vars, **(vars or {})}
    types = (instance_type,) if instance_type else resolved.group.instance_types
    template = resolved.spec.template.model_copy(
        update={
            "instance_type": types[0] if len(types) == 1 else "",
            "instance_types": types if len(types) > 1 else None,
        }
    )
    group = dataclasses.replace(
        resolved.group,
        instance_types=types,
        vars=own_vars,
        infra_hash=hashes.infra_hash(template),
        runtime_hash=hashes.runtime_hash(vars=own_vars, files=resolved.files, certificates=resolved.certificates),
    )
    return dataclasses.replace(resolved, group=group, vars=own_vars)


def _changed_by(api: DynamicGroup, file: FileValues) -> str:
    """Who last changed what the instances are made of through the API."""
    names = ["template", "subnet_pool", "args"]
    if api.instance_type and api.instance_type != file.instance_type:
        names.append("instance_type")
    stamps = [api.set_by[name] for name in names if name in api.set_by]
    return max(stamps, key=lambda stamp: stamp.at).by if stamps else "config"


def _instance_types(*layers: GroupConfig | DynamicGroup | Template | None) -> tuple[str, ...]:
    """Of the first layer that has any. One that has a single type replaces a list, and the other way round."""
    for layer in layers:
        if layer is not None and layer.instance_type:
            return (layer.instance_type,)
        if isinstance(layer, GroupConfig | Template) and layer.instance_types:
            return layer.instance_types
    return ()


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _subnet_pool(settings: Settings, base: GroupConfig | DynamicGroup, template: Template, *, is_static: bool) -> str:
    if pool := base.subnet_pool or template.subnet_pool:
        return pool
    choice = tuple(settings.shard.subnet_pools) if is_static else dynamics.allowed_subnet_pools(settings)
    return choice[0] if len(choice) == 1 else ""
