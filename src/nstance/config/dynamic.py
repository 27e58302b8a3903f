"""Groups that were made or changed through the API: `shard/{shard}/groups.jsonc`, `{tenant: {group: config}}`.

For a static group the file holds only what the API can change: size, instance type, vars, paused, and the revision that it
was rolled back to. `set_by` records who set a value and when; files of older versions lack it. Edits return new values.
The trap: a change of the static configuration can make a group invalid, so `check` checks the whole file each time.
"""

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool, ValidationError

from nstance.config import jsonc
from nstance.config.checks import provider_rules, template_fields, validation_errors
from nstance.config.checks.problems import ProblemCollector
from nstance.config.errors import ConfigError, Problem, quoted
from nstance.config.jsonc import Path
from nstance.config.merge import merge
from nstance.config.model import scalars, workload
from nstance.config.model.load_balancers import MEMBER_LISTS
from nstance.config.model.settings import MAX_GROUPS, Settings
from nstance.model import ids
from nstance.model.ids import GroupKey, GroupName, TenantId

MAX_BYTES = 16 * 1024 * 1024
# Limits of one tenant in a shard.
MAX_TENANT_GROUPS = 1_000
MAX_TENANT_INSTANCES = 20_000
MAX_TENANT_BYTES = 1024 * 1024

_STATIC_GROUP_FIELDS = frozenset({"size", "instance_type", "vars", "paused", "set_by", "rollback"})
_STAMPED_FIELDS = ("size", "instance_type", "vars", "paused", "template", "subnet_pool", "args")
_HEADER = """\
// Groups made or changed through the API. The server rewrites this file: comments do not survive.
// A group that is also in config.jsonc holds only size, instance_type, vars, paused and rollback here.
"""


def _check_time(value: str) -> str:
    try:
        at = datetime.datetime.fromisoformat(value)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise scalars.invalid(f"expected a time such as 2026-01-31T12:00:00Z, found {quoted(value)}")
    return value


class Stamp(scalars.Block):
    """Who set a value through the API, and when."""

    by: scalars.Text
    at: Annotated[scalars.Text, AfterValidator(_check_time)]

    @property
    def seconds(self) -> float:
        return datetime.datetime.fromisoformat(self.at).timestamp()


def stamp(by: str, now: float) -> Stamp:
    at = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
    return Stamp(by=by, at=at.isoformat().replace("+00:00", "Z"))


class Rollback(scalars.Block):
    """An earlier revision that replaces the configured one until the configuration changes."""

    to: scalars.NonEmptyText = Field(description="infra hash of the active revision")
    instead_of: scalars.NonEmptyText = Field(description="infra hash of the configured revision")
    by: scalars.Text = ""
    template: workload.Template  # merged with all layers of the group
    certificates: Mapping[scalars.Label, workload.Certificate] = Field(default_factory=dict)


class DynamicGroup(scalars.Block):
    template: scalars.NonEmptyText | None = None
    size: scalars.Count | None = None
    instance_type: scalars.Text | None = None
    subnet_pool: scalars.Text | None = None
    vars: scalars.Vars = Field(default_factory=dict)
    args: scalars.Args = Field(default_factory=dict)
    drain_timeout: scalars.Duration | None = None
    load_balancers: tuple[scalars.Text, ...] | None = None
    update: workload.Update | None = None
    paused: StrictBool = False
    set_by: Mapping[str, Stamp] = Field(default_factory=dict)  # by field
    rollback: Rollback | None = None

    def written(self) -> dict[str, object]:
        """As it is written in the file."""
        return scalars.dump_as_written(self)


@dataclass(frozen=True, slots=True)
class DynamicGroups:
    groups: Mapping[GroupKey, DynamicGroup] = field(default_factory=dict)


def parse(text: str | bytes, *, source: str = "groups") -> DynamicGroups:
    """Raises ConfigError with all problems."""
    document = jsonc.read(text, source=source, limit=MAX_BYTES)
    if not isinstance(document.value, dict):
        raise ConfigError((Problem(source, 1, 1, "expected an object in braces"),))
    problems = ProblemCollector()
    groups = {}
    for tenant, named in document.value.items():
        _check_name(tenant, (tenant,), problems)
        if not isinstance(named, dict):
            problems.add((tenant,), f"expected an object of groups, found {scalars.describe_type(named)}")
            continue
        for name, value in named.items():
            _check_name(name, (tenant, name), problems)
            group = _validated(value, (tenant, name), problems)
            if group is not None:
                groups[GroupKey(TenantId(tenant), GroupName(name))] = group
    problems.raise_any(document, source=source)
    return DynamicGroups(groups)


def group(key: GroupKey, value: Mapping[str, object]) -> DynamicGroup:
    """One group from the data of an API call. Raises ConfigError with paths that start at the group's fields."""
    problems = ProblemCollector()
    _check_name(key.tenant, (), problems)
    _check_name(key.name, (), problems)
    validated = _validated(dict(value), (), problems)
    problems.raise_any(None, source=str(key))
    assert validated is not None
    return validated


def dump(dynamic: DynamicGroups, *, operation: str = "") -> str:
    """`operation`: an ID of this write. It makes every file unique, so that a writer recognizes its own."""
    header = f"{_HEADER}// operation: {operation}\n" if operation else _HEADER
    tenants: dict[str, list[str]] = {}
    for key in sorted(dynamic.groups):
        # One line for each group: easy to compare, and ten times faster than the library's indentation.
        group = json.dumps(dynamic.groups[key].written(), ensure_ascii=False, allow_nan=False)
        tenants.setdefault(key.tenant, []).append(f"    {json.dumps(key.name)}: {group}")
    blocks = (f"  {json.dumps(tenant)}: {{\n{_lines(groups)}\n  }}" for tenant, groups in tenants.items())
    return f"{header}{{\n{_lines(blocks)}\n}}\n" if tenants else f"{header}{{}}\n"


def _lines(entries: Iterable[str]) -> str:
    return ",\n".join(entries)


def upsert(dynamic: DynamicGroups, key: GroupKey, group: DynamicGroup, *, by: Stamp | None = None) -> DynamicGroups:
    """Sets a group; whether it is paused or rolled back does not change. `by`: None if unknown."""
    before = dynamic.groups.get(key, DynamicGroup())
    changed = _stamped(before, group.model_copy(update={"paused": before.paused, "rollback": before.rollback}), by)
    return DynamicGroups({**dynamic.groups, key: changed})


def _stamped(before: DynamicGroup, after: DynamicGroup, by: Stamp | None) -> DynamicGroup:
    """An unchanged value keeps its stamp."""
    stamps = {}
    for name in _STAMPED_FIELDS:
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
    return _change(dynamic, keys, by, paused=paused)


def roll_back(dynamic: DynamicGroups, key: GroupKey, rollback: Rollback | None) -> DynamicGroups:
    """Sets the earlier revision to use instead of the configured one; None removes it."""
    return _change(dynamic, [key], None, rollback=rollback)


def _change(dynamic: DynamicGroups, keys: Iterable[GroupKey], by: Stamp | None, **changes: object) -> DynamicGroups:
    """Changes fields of groups. An entry that becomes empty is removed."""
    groups = dict(dynamic.groups)
    for key in keys:
        before = groups.get(key, DynamicGroup())
        groups[key] = _stamped(before, before.model_copy(update=changes), by)
        if not groups[key].written():
            del groups[key]
    return DynamicGroups(groups)


def prune(settings: Settings, dynamic: DynamicGroups) -> DynamicGroups:
    """Removes the overrides of static groups that are no longer configured."""
    return DynamicGroups(
        {key: group for key, group in dynamic.groups.items() if key in settings.groups or group.template is not None}
    )


def check(settings: Settings, dynamic: DynamicGroups) -> list[Problem]:
    """The problems of these groups with these settings. Paths start at the tenant."""
    problems = ProblemCollector()
    tenants = (ids.DEFAULT_TENANT, *settings.tenants)
    for key, group in dynamic.groups.items():
        path: Path = (key.tenant, key.name)
        if key.tenant != ids.DEFAULT_TENANT and key.tenant not in settings.tenants:
            message = f"expected a tenant of the configuration, found {quoted(key.tenant)}"
            problems.add(path[:1], message, word=key.tenant, candidates=tenants)
        elif key in settings.groups:
            for name in sorted(group.written().keys() - _STATIC_GROUP_FIELDS):
                message = "expected only size, instance_type, vars, paused and rollback for a static group"
                problems.add((*path, name), message)
            _check_merged(settings, group, settings.groups[key].template, path, problems)
        else:
            _check_dynamic(settings, group, path, problems)
    return [*problems.locate(None, source="groups"), *check_quotas(settings, dynamic)]


def allowed_subnet_pools(settings: Settings) -> tuple[str, ...]:
    """The subnet pools that dynamic groups may use."""
    allowed = settings.shard.dynamic_subnet_pools
    return tuple(settings.shard.subnet_pools) if allowed is None else allowed


def _check_dynamic(settings: Settings, group: DynamicGroup, path: Path, problems: ProblemCollector) -> None:
    if group.template is None:
        problems.add((*path, "template"), "expected a template: this group is not in the static configuration")
        return
    template = settings.templates.get(group.template)
    if template is None:
        message = f"expected the name of a template, found {quoted(group.template)}"
        problems.add((*path, "template"), message, word=group.template, candidates=settings.templates)
        return
    provider = settings.shard.infra.provider
    allowed = allowed_subnet_pools(settings)
    pool = group.subnet_pool or template.subnet_pool
    if pool and pool not in allowed:
        message = f"expected a subnet pool that dynamic groups may use, found {quoted(pool)}"
        problems.add((*path, "subnet_pool"), message, word=pool, candidates=allowed)
    elif not pool and len(allowed) != 1 and (provider_rules.needs_subnets(provider) or allowed):
        problems.add(
            (*path, "subnet_pool"), "expected a subnet_pool: there is no default, the shard has several pools or none"
        )
    for index, name in enumerate(group.load_balancers or ()):
        balancer = settings.load_balancers.get(name)
        if balancer is None:
            message = f"expected the name of a load balancer, found {quoted(name)}"
            problems.add((*path, "load_balancers", index), message, word=name, candidates=settings.load_balancers)
        elif balancer.provider not in (provider, *MEMBER_LISTS) and not provider_rules.RULES[provider].local:
            message = f"expected a load balancer of the provider {provider}, found one of {balancer.provider}"
            problems.add((*path, "load_balancers", index), message)
    provider_rules.check_args(provider, group.args, (*path, "args"), problems)
    images = None if provider_rules.RULES[provider].local else settings.images
    for place, text in template_fields.strings((*path, "args"), group.args):
        template_fields.check(place, text, problems, images=images)
    _check_merged(settings, group, group.template, path, problems)


def _check_merged(settings: Settings, group: DynamicGroup, name: str, path: Path, problems: ProblemCollector) -> None:
    template = settings.templates[name]
    args = merge(settings.defaults.args, template.args, group.args)
    types = provider_rules.list_types(group.instance_type, None)
    types = types or provider_rules.list_types(template.instance_type, template.instance_types)
    provider_rules.check_merged(settings.shard.infra.provider, args, types, path, problems)


def check_quotas(settings: Settings, dynamic: DynamicGroups) -> list[Problem]:
    """The quotas that are exceeded. The path is the tenant, or empty for the shard's own limit."""
    problems = ProblemCollector()
    counts: Counter[TenantId] = Counter()
    instances: Counter[TenantId] = Counter()
    sizes: Counter[TenantId] = Counter()
    for key, group in dynamic.groups.items():
        counts[key.tenant] += key not in settings.groups
        instances[key.tenant] += group.size or 0
        fields = {name: value for name, value in group.written().items() if name != "set_by"}
        sizes[key.tenant] += len(json.dumps(fields, ensure_ascii=False).encode())
    limits = (
        (counts, MAX_TENANT_GROUPS, "dynamic groups"),
        (instances, MAX_TENANT_INSTANCES, "instances in groups that were changed through the API"),
        (sizes, MAX_TENANT_BYTES, "bytes of group configuration"),
    )
    for usage, limit, noun in limits:
        for tenant, used in usage.items():
            if used > limit:
                problems.add((tenant,), f"expected at most {limit:,} {noun} in a tenant, found {used:,}")
    total = len(settings.groups) + counts.total()
    if total > MAX_GROUPS:
        problems.add((), f"expected at most {MAX_GROUPS:,} groups in a shard, found {total:,}")
    return list(problems.locate(None, source="groups"))


def _check_name(name: str, path: Path, problems: ProblemCollector) -> None:
    try:
        scalars.check_name(name)
    except ValueError as error:
        problems.add(path, str(error), at_key=True)


def _validated(value: object, at: Path, problems: ProblemCollector) -> DynamicGroup | None:
    try:
        return DynamicGroup.model_validate(value)
    except ValidationError as error:
        validation_errors.collect(error, DynamicGroup, value, problems, at=at)
        return None
