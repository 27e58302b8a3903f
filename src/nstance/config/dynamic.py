"""Groups that came through the API: `shard/{shard}/groups.jsonc`, `{tenant: {group: config}}`.

For a static group the file holds only what the API may change of it: size, instance type, vars, whether it is paused,
and the earlier revision that it was rolled back to. `set_by` says who set a value and when; files of older versions do not
have it. Edits are pure: a new value, never a changed one. The trap: what was accepted once can become wrong when the
static configuration changes, so `check` judges the whole file against the settings each time.
"""

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool, ValidationError

from nstance.config import fields, jsonc, messages, rules, templating, workload
from nstance.config.errors import ConfigError, Problem, quoted
from nstance.config.findings import Findings
from nstance.config.jsonc import Path
from nstance.config.merge import merge
from nstance.config.settings import MAX_GROUPS, Settings
from nstance.model import ids
from nstance.model.ids import GroupKey, GroupName, TenantId

MAX_BYTES = 16 * 1024 * 1024
# What one tenant may ask of a shard.
MAX_TENANT_GROUPS = 1_000
MAX_TENANT_INSTANCES = 20_000
MAX_TENANT_BYTES = 1024 * 1024

_OF_STATIC = frozenset({"size", "instance_type", "vars", "paused", "set_by", "rollback"})
_STAMPED = ("size", "instance_type", "vars", "paused", "template", "subnet_pool", "args")
_HEADER = """\
// Groups made or changed through the API. The server rewrites this file: comments do not survive.
// A group that is also in config.jsonc holds only size, instance_type, vars, paused and rollback here.
"""


def _moment(value: str) -> str:
    try:
        at = datetime.datetime.fromisoformat(value)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise fields.wrong(f"expected a time such as 2026-01-31T12:00:00Z, found {quoted(value)}")
    return value


class Stamp(fields.Block):
    """Who set a value through the API, and when."""

    by: fields.Text
    at: Annotated[fields.Text, AfterValidator(_moment)]

    @property
    def seconds(self) -> float:
        return datetime.datetime.fromisoformat(self.at).timestamp()


def stamp(by: str, now: float) -> Stamp:
    at = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
    return Stamp(by=by, at=at.isoformat().replace("+00:00", "Z"))


class Rollback(fields.Block):
    """An earlier revision takes the place of the one that the configuration asks for, until that asks for another one."""

    to: fields.Filled = Field(description="infra hash of the revision that is in force")
    instead_of: fields.Filled = Field(description="infra hash of the revision that the configuration asks for")
    by: fields.Text = ""
    template: workload.Template  # with all layers of the group in it
    certificates: Mapping[fields.Label, workload.Certificate] = Field(default_factory=dict)


class DynamicGroup(fields.Block):
    template: fields.Filled | None = None
    size: fields.Count | None = None
    instance_type: fields.Text | None = None
    subnet_pool: fields.Text | None = None
    vars: fields.Vars = Field(default_factory=dict)
    args: fields.Args = Field(default_factory=dict)
    drain_timeout: fields.Duration | None = None
    load_balancers: tuple[fields.Text, ...] | None = None
    update: workload.Update | None = None
    paused: StrictBool = False
    set_by: Mapping[str, Stamp] = Field(default_factory=dict)  # by field
    rollback: Rollback | None = None

    def written(self) -> dict[str, object]:
        """As it stands in the file."""
        return fields.written(self)


@dataclass(frozen=True, slots=True)
class DynamicGroups:
    groups: Mapping[GroupKey, DynamicGroup] = field(default_factory=dict)


def parse(text: str | bytes, *, source: str = "groups") -> DynamicGroups:
    """Raises ConfigError with all problems."""
    document = jsonc.read(text, source=source, limit=MAX_BYTES)
    if not isinstance(document.value, dict):
        raise ConfigError((Problem(source, 1, 1, "expected an object in braces"),))
    findings = Findings()
    groups = {}
    for tenant, named in document.value.items():
        _check_name(tenant, (tenant,), findings)
        if not isinstance(named, dict):
            findings.add((tenant,), f"expected an object of groups, found {fields.kind_of(named)}")
            continue
        for name, value in named.items():
            _check_name(name, (tenant, name), findings)
            group = _validated(value, (tenant, name), findings)
            if group is not None:
                groups[GroupKey(TenantId(tenant), GroupName(name))] = group
    findings.raise_any(document, source=source, origins={})
    return DynamicGroups(groups)


def group(key: GroupKey, value: Mapping[str, object]) -> DynamicGroup:
    """One group from plain data, as an API call gives it. Raises ConfigError; its paths start at the group's fields."""
    findings = Findings()
    _check_name(key.tenant, (), findings)
    _check_name(key.name, (), findings)
    made = _validated(dict(value), (), findings)
    findings.raise_any(None, source=str(key), origins={})
    assert made is not None
    return made


def dump(dynamic: DynamicGroups, *, operation: str = "") -> str:
    """`operation`: names this write, so that no two files are alike and a writer recognises its own."""
    header = f"{_HEADER}// operation: {operation}\n" if operation else _HEADER
    tenants: dict[str, list[str]] = {}
    for key in sorted(dynamic.groups):
        # A line for each group: easy to compare, and ten times faster than what the library indents.
        group = json.dumps(dynamic.groups[key].written(), ensure_ascii=False, allow_nan=False)
        tenants.setdefault(key.tenant, []).append(f"    {json.dumps(key.name)}: {group}")
    blocks = (f"  {json.dumps(tenant)}: {{\n{_lines(groups)}\n  }}" for tenant, groups in tenants.items())
    return f"{header}{{\n{_lines(blocks)}\n}}\n" if tenants else f"{header}{{}}\n"


def _lines(entries: Iterable[str]) -> str:
    return ",\n".join(entries)


def upsert(dynamic: DynamicGroups, key: GroupKey, group: DynamicGroup, *, by: Stamp | None = None) -> DynamicGroups:
    """The group as given; whether it is paused or rolled back stays as it was. `by`: None if nobody knows who asked."""
    before = dynamic.groups.get(key, DynamicGroup())
    kept = _stamped(before, group.model_copy(update={"paused": before.paused, "rollback": before.rollback}), by)
    return DynamicGroups({**dynamic.groups, key: kept})


def _stamped(before: DynamicGroup, after: DynamicGroup, by: Stamp | None) -> DynamicGroup:
    """A value that stays keeps its stamp: saying it again is no change."""
    stamps = {}
    for name in _STAMPED:
        value = getattr(after, name)
        if value == DynamicGroup.model_fields[name].get_default(call_default_factory=True):
            continue
        known = before.set_by.get(name) if value == getattr(before, name) else by
        if known is not None:
            stamps[name] = known
    return after.model_copy(update={"set_by": stamps})


def delete(dynamic: DynamicGroups, key: GroupKey) -> DynamicGroups:
    return DynamicGroups({each: group for each, group in dynamic.groups.items() if each != key})


def pause(dynamic: DynamicGroups, keys: Iterable[GroupKey], *, paused: bool, by: Stamp | None = None) -> DynamicGroups:
    """Pauses or resumes these groups, static ones too."""
    return _with(dynamic, keys, by, paused=paused)


def roll_back(dynamic: DynamicGroups, key: GroupKey, rollback: Rollback | None) -> DynamicGroups:
    """With an earlier revision in place of the configured one, or without it."""
    return _with(dynamic, [key], None, rollback=rollback)


def _with(dynamic: DynamicGroups, keys: Iterable[GroupKey], by: Stamp | None, **fields: object) -> DynamicGroups:
    """An entry that then says nothing is dropped."""
    groups = dict(dynamic.groups)
    for key in keys:
        before = groups.get(key, DynamicGroup())
        groups[key] = _stamped(before, before.model_copy(update=fields), by)
        if not groups[key].written():
            del groups[key]
    return DynamicGroups(groups)


def prune(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
    """Without what was left behind by static groups that are no longer configured."""
    return DynamicGroups(
        {key: group for key, group in dynamic.groups.items() if key in settings.groups or group.template is not None}
    )


def check(settings: Settings, dynamic: DynamicGroups) -> list[Problem]:
    """What is wrong with these groups under these settings. Paths start at the tenant."""
    findings = Findings()
    tenants = (ids.DEFAULT_TENANT, *settings.tenants)
    for key, group in dynamic.groups.items():
        path: Path = (key.tenant, key.name)
        if key.tenant != ids.DEFAULT_TENANT and key.tenant not in settings.tenants:
            message = f"expected a tenant of the configuration, found {quoted(key.tenant)}"
            findings.add(path[:1], message, word=key.tenant, candidates=tenants)
        elif key in settings.groups:
            for name in sorted(group.written().keys() - _OF_STATIC):
                message = "expected only size, instance_type, vars, paused and rollback: this group is static"
                findings.add((*path, name), message)
            _check_merged(settings, group, settings.groups[key].template, path, findings)
        else:
            _check_dynamic(settings, group, path, findings)
    return [*findings.problems(None, source="groups", origins={}), *quotas(settings, dynamic)]


def pools(settings: Settings) -> tuple[str, ...]:
    """The subnet pools that dynamic groups may use."""
    given = settings.shard.dynamic_subnet_pools
    return tuple(settings.shard.subnet_pools) if given is None else given


def _check_dynamic(settings: Settings, group: DynamicGroup, path: Path, findings: Findings) -> None:
    if group.template is None:
        findings.add((*path, "template"), "expected a template: this group is not in the static configuration")
        return
    template = settings.templates.get(group.template)
    if template is None:
        message = f"expected the name of a template, found {quoted(group.template)}"
        findings.add((*path, "template"), message, word=group.template, candidates=settings.templates)
        return
    provider = settings.shard.infra.provider
    allowed = pools(settings)
    pool = group.subnet_pool or template.subnet_pool
    if pool and pool not in allowed:
        message = f"expected a subnet pool that is open to dynamic groups, found {quoted(pool)}"
        findings.add((*path, "subnet_pool"), message, word=pool, candidates=allowed)
    elif not pool and len(allowed) != 1 and not (rules.RULES[provider].local and not allowed):
        findings.add((*path, "subnet_pool"), "expected a subnet pool, because none can be assumed")
    for index, name in enumerate(group.load_balancers or ()):
        balancer = settings.load_balancers.get(name)
        if balancer is None:
            message = f"expected the name of a load balancer, found {quoted(name)}"
            findings.add((*path, "load_balancers", index), message, word=name, candidates=settings.load_balancers)
        elif balancer.provider != provider and not rules.RULES[provider].local:
            message = f"expected a load balancer of the provider {provider}, found one of {balancer.provider}"
            findings.add((*path, "load_balancers", index), message)
    rules.check_args(provider, group.args, (*path, "args"), findings)
    images = None if rules.RULES[provider].local else settings.images
    for place, text in templating.strings((*path, "args"), group.args):
        templating.check(place, text, findings, images=images)
    _check_merged(settings, group, group.template, path, findings)


def _check_merged(settings: Settings, group: DynamicGroup, name: str, path: Path, findings: Findings) -> None:
    template = settings.templates[name]
    args = merge(settings.defaults.args, template.args, group.args)
    kind = group.instance_type or template.instance_type or ""
    rules.check_merged(settings.shard.infra.provider, args, kind, path, findings)


def quotas(settings: Settings, dynamic: DynamicGroups) -> list[Problem]:
    """Of which there is too much. Paths are the tenant's; a full shard has none."""
    findings = Findings()
    made: dict[TenantId, int] = {}
    instances: dict[TenantId, int] = {}
    size: dict[TenantId, int] = {}
    for key, group in dynamic.groups.items():
        if key not in settings.groups:
            made[key.tenant] = made.get(key.tenant, 0) + 1
        instances[key.tenant] = instances.get(key.tenant, 0) + (group.size or 0)
        said = {name: value for name, value in group.written().items() if name != "set_by"}
        size[key.tenant] = size.get(key.tenant, 0) + len(json.dumps(said, ensure_ascii=False).encode())
    limits = (
        (made, MAX_TENANT_GROUPS, "dynamic groups"),
        (instances, MAX_TENANT_INSTANCES, "instances in groups of the API"),
        (size, MAX_TENANT_BYTES, "bytes of group configuration"),
    )
    for counts, most, noun in limits:
        for tenant, count in counts.items():
            if count > most:
                findings.add((tenant,), f"expected at most {most:,} {noun} in a tenant, found {count:,}")
    together = len(settings.groups) + sum(made.values())
    if together > MAX_GROUPS:
        findings.add((), f"expected at most {MAX_GROUPS:,} groups in a shard, found {together:,}")
    return list(findings.problems(None, source="groups", origins={}))


def _check_name(name: str, path: Path, findings: Findings) -> None:
    try:
        fields.name(name)
    except ValueError as error:
        findings.add(path, str(error), at_key=True)


def _validated(value: object, at: Path, findings: Findings) -> DynamicGroup | None:
    try:
        return DynamicGroup.model_validate(value)
    except ValidationError as error:
        messages.collect(error, DynamicGroup, value, findings, at=at)
        return None
