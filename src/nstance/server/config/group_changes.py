"""What changed in groups and who changed it, as one event for each group."""

from collections.abc import Callable, Iterator

from nstance.config.dynamic import DynamicGroup
from nstance.model import durations
from nstance.model.group import Group
from nstance.model.ids import GroupKey
from nstance.server.config.configuration import Configuration


def changes(
    before: Configuration, after: Configuration, author: Callable[[GroupKey], str]
) -> Iterator[tuple[GroupKey, str]]:
    """Each group that changed, with what changed and by whom. `author`: empty if unknown."""
    for key in sorted({*before.groups, *after.groups}):
        old, new = before.groups.get(key), after.groups.get(key)
        if old is new:
            continue
        what = describe(old.group if old is not None else None, new.group if new is not None else None)
        if old is not None and new is not None and new.group.static:
            returned = _returned_settings(before.dynamic.groups.get(key), after.dynamic.groups.get(key))
            what = "; ".join(filter(None, (what, returned)))
        if what:
            who = author(key)
            yield key, f"{what} (by {who})" if who else what


def _returned_settings(old: DynamicGroup | None, new: DynamicGroup | None) -> str:
    """Of a static group: settings that follow the configuration file again."""
    old, new = old or DynamicGroup(), new or DynamicGroup()
    names = ["size"] if old.size is not None and new.size is None else []
    names += ["instance type"] if old.instance_type and not new.instance_type else []
    if gone := sorted(old.vars.keys() - new.vars.keys()):
        names.append(f"vars {', '.join(gone[:10])}")
    return f"{', '.join(names)} returned to the configuration file" if names else ""


def describe(old: Group | None, new: Group | None) -> str:
    """What changed, for people. Vars may be confidential: only their names are shown."""
    if new is None:
        return "group deleted"
    if old is None:
        return f"group created with size {new.size}"
    names = {
        "size": "size",
        "template": "template",
        "instance_types": "instance type",
        "markets": "markets",
        "prefer": "preference",
        "capacity_retry": "capacity retry",
        "subnet_pool": "subnet pool",
        "drain_timeout": "drain timeout",
        "max_surge": "max surge",
        "max_unavailable": "max unavailable",
        "order": "order",
        "load_balancers": "load balancers",
    }
    changes = [
        f"{name} {_shown(getattr(old, field))} → {_shown(getattr(new, field))}"
        for field, name in names.items()
        if getattr(old, field) != getattr(new, field)
    ]
    vars = sorted(name for name in {*old.vars, *new.vars} if old.vars.get(name) != new.vars.get(name))
    if vars:
        changes.append(f"vars {', '.join(vars[:10])} changed")
    if old.rolled_back_from != new.rolled_back_from:
        changes.append("rolled back to an earlier revision" if new.rolled_back_from else "no longer rolled back")
    if old.paused != new.paused:
        changes.append("paused" if new.paused else "resumed")
    if not changes and old.infra_hash != new.infra_hash:
        changes.append("args changed")
    return "; ".join(changes)


def _shown(value: object) -> str:
    match value:
        case "" | ():
            return "none"
        case tuple():
            return ", ".join(map(str, value))
        case float():
            return durations.format(value)
        case _:
            return str(value)
