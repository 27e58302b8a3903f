"""Contexts: named sets of default values for flags, in a file of the person's own.

The file holds paths of secrets, never secrets. A flag takes precedence over the environment, and the environment over the
context.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from nstance.admin import errors, files

VARIABLE = "NSTANCE_CONTEXT"
SETTINGS = (  # names of flags, with underscores
    *("servers", "identity_dir", "shard", "timeout", "tenant"),
    *("cluster_id", "storage_provider", "storage_bucket", "storage_prefix", "prefix"),
    *("secrets_provider", "secrets_prefix", "secrets_project", "key_provider", "key_source"),
)
MAX_FILE_BYTES = 1 << 20

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Contexts:
    current: str | None = None
    named: Mapping[str, Settings] = field(default_factory=dict)

    def find(self, name: str) -> Settings:
        if name not in self.named:
            hint = errors.did_you_mean(name, self.named) or "; create it with `nstance-admin context set`"
            raise click.UsageError(f"there is no context {name}{hint}")
        return self.named[name]

    def put(self, name: str, settings: Settings) -> "Contexts":
        """The first context becomes the current one."""
        return Contexts(self.current or name, {**self.named, name: settings})

    def use(self, name: str) -> "Contexts":
        self.find(name)
        return replace(self, current=name)

    def delete(self, name: str) -> "Contexts":
        self.find(name)
        left = {key: value for key, value in self.named.items() if key != name}
        return Contexts(self.current if self.current != name else None, left)


def path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or ""
    base = Path(home) if os.path.isabs(home) else Path.home() / ".config"
    return base / "nstance" / "contexts.json"


def load() -> Contexts:
    """Empty without a file. Raises UsageError for one that cannot be used."""
    file = path()
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(MAX_FILE_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, ValueError) as error:
        raise click.UsageError(f"failed to read {file}: {error}; correct or remove it") from error
    named = found.get("contexts") if isinstance(found, dict) else None
    current = found.get("current") if isinstance(found, dict) else None
    if not isinstance(named, dict) or not all(map(_is_settings, named.values())) or not _is_name(current):
        raise click.UsageError(f"expected the contexts of `nstance-admin context set`, found other content in {file}")
    return Contexts(current, named)


def _is_settings(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_name(value: object) -> bool:
    return value is None or isinstance(value, str)


def save(contexts: Contexts) -> None:
    file = path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {"current": contexts.current, "contexts": contexts.named}
    files.write(file, (json.dumps(document, indent=2) + "\n").encode(), mode=files.PRIVATE)


def settings(name: str | None) -> Settings:
    """Of a context, by default of the current one."""
    contexts = load()
    chosen = name or contexts.current
    return contexts.find(chosen) if chosen else {}
