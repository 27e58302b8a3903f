"""What each group really is: defaults < template < group < what the API said, with both hashes.

`userdata` of the defaults counts only where the template has none. A request for one instance on top of a group is one
more layer (`on_demand`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from nstance.config import dynamic as dynamics
from nstance.config import hashes
from nstance.config.dynamic import DynamicGroup, DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.merge import merge
from nstance.config.settings import Settings
from nstance.config.workload import Certificate, CertificateFile, FileSpec, GroupConfig, Template, Update, Userdata
from nstance.model.group import Group
from nstance.model.ids import GroupKey, Kind


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
    etag: str  # changes with anything that the API can show or set


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
    name = (static.template if static else said.template) or ""
    template = settings.templates[name]
    layers: tuple[GroupConfig | DynamicGroup, ...] = (static, said) if static else (said,)
    vars = _texts(settings.defaults.vars, template.vars, *(layer.vars for layer in layers))
    args = merge(settings.defaults.args, template.args, *(layer.args for layer in layers))
    userdata = template.userdata or settings.defaults.userdata
    files = template.files
    certificates = {
        file.template: settings.certificates[file.template]
        for file in files.values()
        if isinstance(file, CertificateFile)
    }
    base = static or said
    instance_type = said.instance_type or base.instance_type or template.instance_type or ""
    pool = _pool(settings, base, template, static=static is not None)
    update = base.update or Update()
    sizes = (said.size, base.size, template.size)
    drain_timeout = settings.shard.default_drain_timeout if base.drain_timeout is None else base.drain_timeout
    group = Group(
        key=key,
        size=next((size for size in sizes if size is not None), 0),
        template=name,
        kind=Kind(template.kind),
        instance_type=instance_type,
        subnet_pool=pool,
        subnets=settings.shard.subnet_pools.get(pool, ()),
        infra_hash=hashes.infra_hash(
            args=args,
            instance_type=instance_type,
            subnet_pool=pool,
            userdata=userdata,
            kind=template.kind,
            arch=template.arch,
        ),
        runtime_hash=hashes.runtime_hash(vars=vars, files=files, certificates=certificates),
        drain_timeout=drain_timeout,
        registration_timeout=template.registration_timeout or settings.shard.garbage_collection.registration_timeout,
        load_balancers=base.load_balancers or (),
        max_surge=update.max_surge,
        max_unavailable=update.max_unavailable,
        vars=vars,
        static=static is not None,
        paused=said.paused,
    )
    return Resolved(
        group=group,
        arch=template.arch,
        args=args,
        vars=vars,
        userdata=userdata,
        files=files,
        certificates=certificates,
        etag=hashes.digest(dataclasses.asdict(group)),
    )


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


def _texts(*layers: Mapping[str, str]) -> dict[str, str]:
    return {name: text for layer in layers for name, text in layer.items()}


def _pool(settings: Settings, base: GroupConfig | DynamicGroup, template: Template, *, static: bool) -> str:
    named = base.subnet_pool or template.subnet_pool
    if named:
        return named
    choice = tuple(settings.shard.subnet_pools) if static else dynamics.pools(settings)
    return choice[0] if len(choice) == 1 else ""
