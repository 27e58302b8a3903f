"""What each group really is: defaults < template < group < what the API said, with both hashes.

A group that was rolled back is made of the parts of an earlier revision, as long as the configuration asks for the one
that it was rolled back from. `userdata` of the defaults counts only where the template has none. A request for one instance
on top of a group is one more layer (`on_demand`).
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from nstance.config import dynamic as dynamics
from nstance.config import hashes
from nstance.config.dynamic import DynamicGroup, DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.merge import merge
from nstance.config.overrides import InFile
from nstance.config.readiness import CheckSpec
from nstance.config.settings import Settings
from nstance.config.workload import (
    STOP,
    Certificate,
    CertificateFile,
    FileSpec,
    GroupConfig,
    Template,
    Update,
    Userdata,
)
from nstance.model.group import Group, OnFailure, UpdateOrder
from nstance.model.ids import GroupKey, Kind


@dataclass(frozen=True)
class Parts:
    """All that a revision is made of: enough to make its instances and their files again, whatever the configuration says
    by then."""

    template: Template  # with all layers of the group in it
    certificates: Mapping[str, Certificate]  # the ones that its files name

    @functools.cached_property
    def infra_hash(self) -> str:
        template = self.template
        return hashes.infra_hash(
            args=template.args,
            instance_type=template.instance_type or "",
            subnet_pool=template.subnet_pool or "",
            userdata=template.userdata,
            kind=template.kind,
            arch=template.arch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A group with everything that its instances are made of. Nothing is rendered yet."""

    group: Group
    arch: str
    args: Mapping[str, object]
    vars: Mapping[str, str]
    userdata: Userdata | None
    files: Mapping[str, FileSpec]
    certificates: Mapping[str, Certificate]  # the ones that its files name
    checks: Mapping[str, CheckSpec]
    checks_hash: str  # empty: no checks
    parts: Parts
    etag: str  # changes with anything that the API can show or set
    file: InFile  # what the configuration file says of it


def resolve(settings: Settings, dynamic: DynamicGroups) -> Mapping[GroupKey, Resolved]:
    """All groups, static and dynamic. Raises ConfigError where the dynamic ones do not fit the settings."""
    dynamic = dynamics.prune(settings, dynamic)
    problems = dynamics.check(settings, dynamic)
    if problems:
        raise ConfigError(tuple(problems))
    keys = sorted({*settings.groups, *dynamic.groups})
    return {key: one(settings, key, dynamic.groups.get(key)) for key in keys}


def one(settings: Settings, key: GroupKey, told: DynamicGroup | None) -> Resolved:
    """One group that was checked: a static one, a dynamic one, or a static one with what the API said about it."""
    static = settings.groups.get(key)
    said = told or DynamicGroup()
    base = static or said
    configured = _configured(settings, key, said)
    rollback = said.rollback
    if rollback is not None and rollback.instead_of != configured.infra_hash:
        rollback = None  # the configuration asks for something else by now
    parts = Parts(rollback.template, rollback.certificates) if rollback is not None else configured
    template = parts.template
    update = base.update or Update()
    pause = update.pause_after_canary
    sizes = (said.size, base.size, settings.templates[base.template or ""].size)
    file_template = settings.templates[base.template or ""]
    in_file = InFile(
        size=next((s for s in (static.size if static else None, file_template.size) if s is not None), None),
        instance_type=(static.instance_type if static else None) or file_template.instance_type or "",
        vars=_texts(settings.defaults.vars, file_template.vars, static.vars if static else {}),
    )
    drain_timeout = settings.shard.default_drain_timeout if base.drain_timeout is None else base.drain_timeout
    group = Group(
        key=key,
        size=next((size for size in sizes if size is not None), 0),
        template=base.template or "",
        kind=Kind(template.kind),
        instance_type=template.instance_type or "",
        subnet_pool=template.subnet_pool or "",
        subnets=settings.shard.subnet_pools.get(template.subnet_pool or "", ()),
        infra_hash=parts.infra_hash,
        runtime_hash=hashes.runtime_hash(vars=template.vars, files=template.files, certificates=parts.certificates),
        drain_timeout=drain_timeout,
        registration_timeout=template.registration_timeout or settings.shard.garbage_collection.registration_timeout,
        load_balancers=base.load_balancers or (),
        max_surge=update.max_surge,
        max_unavailable=update.max_unavailable,
        unhealthy_after=template.checks.unhealthy_after,
        order=UpdateOrder(update.order),
        settle=update.settle,
        canary=update.canary,
        pause_after_canary=pause if isinstance(pause, float) else None,
        stop_after_canary=pause == STOP,
        max_failures=update.max_failures,
        on_failure=OnFailure(update.on_failure),
        ready_timeout=template.ready_timeout,
        changed_by=rollback.by if rollback is not None else _changed_by(said, in_file),
        rolled_back_from=rollback.instead_of if rollback is not None else "",
        vars=template.vars,
        static=static is not None,
        overridden=static is not None and told is not None,
        paused=said.paused,
    )
    return Resolved(
        group=group,
        arch=template.arch,
        args=template.args,
        vars=template.vars,
        userdata=template.userdata,
        files=template.files,
        certificates=parts.certificates,
        parts=parts,
        checks=template.checks.by_name,
        checks_hash=hashes.checks_hash(template.checks.by_name),
        etag=hashes.digest(dataclasses.asdict(dataclasses.replace(group, overridden=False))),
        file=in_file,
    )


def _configured(settings: Settings, key: GroupKey, said: DynamicGroup) -> Parts:
    """What the configuration asks for, rolled back or not."""
    static = settings.groups.get(key)
    base = static or said
    template = settings.templates[base.template or ""]
    layers: tuple[GroupConfig | DynamicGroup, ...] = (static, said) if static else (said,)
    merged = template.model_copy(
        update={
            "vars": _texts(settings.defaults.vars, template.vars, *(layer.vars for layer in layers)),
            "args": merge(settings.defaults.args, template.args, *(layer.args for layer in layers)),
            "userdata": template.userdata or settings.defaults.userdata,
            "instance_type": said.instance_type or base.instance_type or template.instance_type or "",
            "subnet_pool": _pool(settings, base, template, static=static is not None),
        }
    )
    certificates = {
        file.template: settings.certificates[file.template]
        for file in template.files.values()
        if isinstance(file, CertificateFile)
    }
    return Parts(merged, certificates)


def on_demand(resolved: Resolved, *, instance_type: str = "", vars: Mapping[str, str] | None = None) -> Resolved:
    """The group as one request wants it. It stays the same group: its etag does not change."""
    own = _texts(resolved.vars, vars or {})
    chosen = instance_type or resolved.group.instance_type
    group = dataclasses.replace(
        resolved.group,
        instance_type=chosen,
        vars=own,
        infra_hash=hashes.infra_hash(
            args=resolved.args,
            instance_type=chosen,
            subnet_pool=resolved.group.subnet_pool,
            userdata=resolved.userdata,
            kind=resolved.group.kind,
            arch=resolved.arch,
        ),
        runtime_hash=hashes.runtime_hash(vars=own, files=resolved.files, certificates=resolved.certificates),
    )
    return dataclasses.replace(resolved, group=group, vars=own)


def _changed_by(said: DynamicGroup, file: InFile) -> str:
    """Who asked for what the instances are made of: the last one who set something of it through the API."""
    names = ["template", "subnet_pool", "args"]
    if said.instance_type and said.instance_type != file.instance_type:
        names.append("instance_type")
    stamps = [said.set_by[name] for name in names if name in said.set_by]
    return max(stamps, key=lambda stamp: stamp.at).by if stamps else "config"


def _texts(*layers: Mapping[str, str]) -> dict[str, str]:
    return {name: text for layer in layers for name, text in layer.items()}


def _pool(settings: Settings, base: GroupConfig | DynamicGroup, template: Template, *, static: bool) -> str:
    named = base.subnet_pool or template.subnet_pool
    if named:
        return named
    choice = tuple(settings.shard.subnet_pools) if static else dynamics.pools(settings)
    return choice[0] if len(choice) == 1 else ""
