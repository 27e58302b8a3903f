"""Values of static groups that were set through the API and override the configuration file.

An override stays until it is unset. Until then a change in the file has no effect, and tools that read or write the file
warn about it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nstance.config.dynamic import DynamicGroup, Stamp
from nstance.model.ids import GroupKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValues:
    """A group's values in the configuration file: from the group, its template or the defaults."""

    size: int | None
    instance_type: str
    own_instance_type: str  # only what the group says
    vars: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    field: str  # size, instance_type or vars.NAME
    value: str
    file_value: str | None  # None: not in the file
    stamp: Stamp | None  # None: set by an older version

    @property
    def hides_file(self) -> bool:
        """Whether the file has another value, which has no effect."""
        return self.file_value is not None and self.file_value != self.value

    @property
    def flag(self) -> str:
        """The flag of `nstance-admin group update` that removes the override."""
        kind, _, name = self.field.partition(".")
        return f"--unset-var {name}" if name else f"--unset-{kind.replace('_', '-')}"


def list_overrides(api: DynamicGroup | None, file: FileValues) -> Iterator[Override]:
    """The overrides of a static group. `api`: its values that were set through the API."""
    if api is None:
        return
    values: list[tuple[str, str, str | None]] = []
    if api.size is not None:
        values.append(("size", str(api.size), None if file.size is None else str(file.size)))
    if api.instance_type:
        values.append(("instance_type", api.instance_type, file.instance_type or None))
    values += [(f"vars.{name}", value, file.vars.get(name)) for name, value in sorted(api.vars.items())]
    for field, value, file_value in values:
        yield Override(field=field, value=value, file_value=file_value, stamp=api.set_by.get(field.partition(".")[0]))


def describe(key: GroupKey, override: Override) -> str:
    """A warning about the override. Vars may be confidential, so their values are not repeated."""
    _, _, var = override.field.partition("vars.")
    file = f"var {var}" if var else f"{override.field.replace('_', ' ')} {override.file_value}"
    api = "another value" if var else override.value
    by = f" (by {override.stamp.by} at {override.stamp.at})" if override.stamp is not None else ""
    return (
        f"{file} in the file has no effect: {api} was set through the API{by}; "
        f"to use the file: nstance-admin group update {key.name} {override.flag}"
    )
