"""Flags that many commands share, each with an environment variable as its default."""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import click
from click.shell_completion import CompletionItem

from nstance.admin.help import Choice, SharedOption, global_flags
from nstance.admin.output import JSONPATH
from nstance.model import durations, ids
from nstance.model.ids import ClusterId

ENVIRONMENT = "NSTANCE_ADMIN_"
OBJECT_STORAGE = "object-storage"
GOOGLE = "google-secret-manager"
SECRETS = (OBJECT_STORAGE, "aws-secrets-manager", "aws-parameter-store", GOOGLE, "file", "env")
KEYS = ("env", "file", "aws-secrets-manager", "aws-parameter-store", "aws-kms", GOOGLE, "google-kms")
FORMATS = ("table", "json", "yaml", "name")
MAX_COUNT = 2**31 - 1

Function = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLocation:
    """Where an encryption key is stored."""

    provider: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The storage and secrets of a cluster, from the flags."""

    cluster: ClusterId | None
    provider: str
    bucket: str
    prefix: str  # of all keys, as the servers' --prefix
    cluster_prefix: str
    secrets: str
    secrets_prefix: str | None
    key: KeyLocation
    old_keys: tuple[KeyLocation, ...]
    insecure_dev: bool
    secrets_project: str = ""  # of Google Cloud; empty: that of the credentials
    dry_run: bool = False  # nothing is written


def name(text: str) -> str:
    """Of a cluster, shard, tenant or group."""
    if not ids.is_name(text):
        raise click.BadParameter(
            f"expected lower-case letters, digits and single dashes, at most {ids.MAX_NAME}, found {text[:64]!r}"
        )
    return text


def instance(text: str) -> str:
    if not ids.is_instance_id(text):
        raise click.BadParameter(f"expected an instance ID such as wrk-01jw51srryegh9snf9cmeh3k4q, found {text[:64]!r}")
    return text


def instance_or_prefix(text: str) -> str:
    """The ID of an instance, or its beginning or end; the kind may be left out."""
    if not re.fullmatch("[a-z0-9-]{2,30}", text):
        raise click.BadParameter(
            f"expected an instance ID such as wrk-01jw51srryegh9snf9cmeh3k4q, or its beginning or end, found {text[:64]!r}"
        )
    return text


def operator(text: str) -> str:
    if not ids.is_instance_id(text) or ids.kind_of(ids.InstanceId(text)) != ids.OPERATOR_KIND:
        raise click.BadParameter(f"expected an operator ID such as opr-01jw51srryegh9snf9cmeh3k4q, found {text[:64]!r}")
    return text


def duration(text: str) -> float:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def positive(text: str) -> float:
    seconds = duration(text)
    if seconds < 0:
        raise click.BadParameter(f"expected a duration of 0s or more, found {text[:64]!r}")
    return seconds


def count(text: str) -> int:
    """A whole number; the server has the tighter limit."""
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > MAX_COUNT:
        raise click.BadParameter(f"expected a whole number from 0 to {MAX_COUNT}, found {text[:64]!r}")
    return int(text)


def old_key(text: str) -> KeyLocation:
    provider, _, source = text.partition(":")
    if provider not in KEYS:
        raise click.BadParameter(f"expected one of {', '.join(KEYS)}, then a colon and the source, found {text[:64]!r}")
    return KeyLocation(provider=provider, source=source)


def flag(spelling: str, *names: str, **kwargs: Any) -> Callable[[Function], Function]:
    variable = ENVIRONMENT + spelling.removeprefix("--").upper().replace("-", "_")
    return click.option(spelling, *names, envvar=variable, show_envvar=True, **{"show_default": True, **kwargs})


def _shared(spelling: str, **kwargs: Any) -> Callable[[Function], Function]:
    return flag(spelling, cls=SharedOption, **kwargs)


_BUCKET = _shared("--storage-bucket", required=True, help="The bucket; with provider file, a directory.")
_TARGET = (
    _shared("--cluster-id", type=name, help="The cluster; default: from the CA certificate."),
    _shared("--storage-provider", type=Choice(["s3", "gcs", "file"]), default="s3", help="Kind of storage."),
    _BUCKET,
    _shared("--storage-prefix", default="cluster/", help="Prefix of the cluster's objects in the bucket."),
    _shared("--prefix", default="", show_default=False, help="The servers' --prefix."),
    _shared("--secrets-provider", type=Choice(SECRETS), default=OBJECT_STORAGE, help="Where secrets are stored."),
    _shared(
        "--secrets-prefix",
        help="Below --storage-prefix (secret/); file: the directory; AWS, Google: nstance/CLUSTER/.",
    ),
    _shared("--secrets-project", help=f"The project of {GOOGLE}."),
    _shared("--key-provider", type=Choice(KEYS), default="env", help="Where the encryption key is stored."),
    _shared(
        "--key-source",
        default="",
        show_default=False,
        help="The key's variable (NSTANCE_ENCRYPTION_KEY), file or secret; aws-kms: the encrypted data key.",
    ),
    _shared(
        "--old-key",
        type=old_key,
        metavar="PROVIDER[:SOURCE]",
        multiple=True,
        help="An earlier key, used only for reading; repeatable.",
    ),
    _shared("--insecure-dev", is_flag=True, help="The servers run with --insecure-dev and without a key."),
    global_flags,
)
_TARGET_NAMES = (
    *("cluster_id", "storage_provider", "storage_bucket", "storage_prefix", "prefix", "insecure_dev"),
    *("secrets_provider", "secrets_prefix", "secrets_project", "key_provider", "key_source", "old_key"),
)


def target_flags(command: Function) -> Function:
    """Collects the shared flags in one `target`."""
    return decorated(_collect_target(command), _TARGET)


def optional_target_flags(command: Function) -> Function:
    """The same for commands that also work without storage: `target` is None unless a bucket is given."""
    bucket = _shared("--storage-bucket", help="The bucket; with provider file, a directory.")
    return decorated(_collect_target(command), tuple(bucket if each is _BUCKET else each for each in _TARGET))


def _collect_target(command: Function) -> Function:
    @functools.wraps(command)
    def collect(**flags: Any) -> None:
        given = {name: flags.pop(name) for name in _TARGET_NAMES}
        command(target=_target(given) if given["storage_bucket"] else None, **flags)

    return collect


def _target(given: Mapping[str, Any]) -> Target:
    secrets, project = given["secrets_provider"], given["secrets_project"] or ""
    if project and secrets != GOOGLE and not given["key_provider"].startswith("google-"):
        raise click.UsageError(f"--secrets-project goes with {GOOGLE}, and only with it")
    if secrets == "file" and not given["secrets_prefix"]:
        raise click.UsageError("--secrets-provider file needs a directory as --secrets-prefix")
    return Target(
        cluster=ClusterId(given["cluster_id"]) if given["cluster_id"] else None,
        provider=given["storage_provider"],
        bucket=given["storage_bucket"],
        prefix=given["prefix"],
        cluster_prefix=given["storage_prefix"],
        secrets=secrets,
        secrets_prefix=given["secrets_prefix"],
        key=KeyLocation(provider=given["key_provider"], source=given["key_source"]),
        old_keys=given["old_key"],
        insecure_dev=given["insecure_dev"],
        secrets_project=project,
    )


def dry_run_flag(command: Function) -> Function:
    """Below `target_flags`. The command runs as usual, over storage that keeps nothing; other effects it must skip if
    `target.dry_run`."""

    @functools.wraps(command)
    def collect(*, target: Target, dry_run: bool, **own: Any) -> None:
        command(target=replace(target, dry_run=dry_run), **own)
        if dry_run:
            click.echo("dry run: nothing was changed", err=True)

    return click.option("--dry-run", is_flag=True, help="Check and show what would be done; change nothing.")(collect)


def tenant_flags(command: Function) -> Function:
    """The tenant, and further buckets whose configs may have it."""
    buckets = click.option(
        "--shard-bucket",
        "shard_buckets",
        multiple=True,
        help="Another bucket whose configs may have the tenant; repeatable.",
    )
    return decorated(command, (tenant_flag, buckets))


def tenant_flag(command: Function) -> Function:
    return flag("--tenant", type=name, default=str(ids.DEFAULT_TENANT), help="The operator's tenant.")(command)


def shard_flag(command: Function) -> Function:
    return flag("--shard", type=name, required=True, help="The shard.")(command)


class Format(click.ParamType[str]):
    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from nstance.admin import errors, jsonpath

        text = str(value)
        if text in FORMATS:
            return text
        if text.startswith(JSONPATH) and text != JSONPATH:
            try:
                jsonpath.Template(text.removeprefix(JSONPATH))
            except jsonpath.JsonPathError as error:
                self.fail(str(error), param, ctx)
            return text
        expected = f"expected one of {', '.join(FORMATS)} and jsonpath=PATH, found {text[:64]!r}"
        return self.fail(f"{expected}{errors.did_you_mean(text, FORMATS)}", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(FORMATS)}|jsonpath=PATH]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(each) for each in (*FORMATS, JSONPATH) if each.startswith(incomplete)]


def format_flag(command: Function) -> Function:
    option = click.option("-o", "--output", "form", type=Format(), default="table", show_default=True, help="Format.")
    return option(command)


def decorated(function: Function, decorators: tuple[Callable[[Function], Function], ...]) -> Function:
    for decorator in reversed(decorators):
        function = decorator(function)
    return function
