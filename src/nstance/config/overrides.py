"""What the API has set of static groups, beside what the configuration file says of it.

An override stays until somebody gives it back to the file: a later change of the file then has no effect, and everything
that reads or writes the file says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nstance.config.dynamic import DynamicGroup, Stamp
from nstance.model.ids import GroupKey


@dataclass(frozen=True, slots=True, kw_only=True)
class InFile:
    """What the configuration file says of a group: in the group itself, its template or the defaults."""

    size: int | None
    instance_type: str
    vars: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    field: str  # size, instance_type or vars.NAME
    value: str
    file_value: str | None  # None: the file says nothing of it
    stamp: Stamp | None  # None: set by an older version

    @property
    def hides_file(self) -> bool:
        """The file says something else, and that does not count."""
        return self.file_value is not None and self.file_value != self.value

    @property
    def flag(self) -> str:
        """Of `nstance-admin group update`: gives it back to the file."""
        kind, _, name = self.field.partition(".")
        return f"--unset-var {name}" if name else f"--unset-{kind.replace('_', '-')}"


def overrides(told: DynamicGroup | None, file: InFile) -> Iterator[Override]:
    """Of a static group. `told`: what the API has set of it."""
    if told is None:
        return
    if told.size is not None:
        said = None if file.size is None else str(file.size)
        yield Override(field="size", value=str(told.size), file_value=said, stamp=told.set_by.get("size"))
    if told.instance_type:
        yield Override(
            field="instance_type",
            value=told.instance_type,
            file_value=file.instance_type or None,
            stamp=told.set_by.get("instance_type"),
        )
    for name, value in sorted(told.vars.items()):
        yield Override(field=f"vars.{name}", value=value, file_value=file.vars.get(name), stamp=told.set_by.get("vars"))


def warning(key: GroupKey, override: Override) -> str:
    """For people. Vars may be confidential: their values are not repeated."""
    _, _, var = override.field.partition("vars.")
    file = f"var {var}" if var else f"{override.field.replace('_', ' ')} {override.file_value}"
    api = "another value" if var else override.value
    by = f" (by {override.stamp.by} at {override.stamp.at})" if override.stamp is not None else ""
    return (
        f"{file} of the file has no effect: the API has set {api}{by}; "
        f"to follow the file: nstance-admin group update {key.name} {override.flag}"
    )
