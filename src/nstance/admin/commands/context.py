"""`context`: set, use, list, show, delete."""

from typing import Any

import click

from nstance.admin import contexts, output
from nstance.admin.help import Group
from nstance.admin.options import Function, format_flag, name

EXAMPLES = """\
nstance-admin context set prod --servers 'a=10.0.0.1:8993|10.0.0.2:8993'
nstance-admin context set prod --identity-dir ~/.nstance/prod
nstance-admin context use prod
nstance-admin status --context staging --all-shards
"""
SET_EXAMPLES = """\
nstance-admin context set prod --servers us-west-2a=10.0.0.1:8993 --identity-dir ~/.nstance/prod --shard us-west-2a
nstance-admin context set prod --storage-bucket my-bucket --key-provider aws-kms
nstance-admin context set prod --unset shard
"""
DELETE_EXAMPLES = """\
nstance-admin context delete staging --dry-run
nstance-admin context delete staging
"""
LIST_EXAMPLES = """\
nstance-admin context list
nstance-admin context list -o name
"""
SHOW_EXAMPLES = """\
nstance-admin context show
nstance-admin context show prod -o json
"""
COLUMNS = ("name", "current", "servers", "shard", "identity_dir", "storage_bucket")


@click.group(cls=Group, examples=EXAMPLES)
def command() -> None:
    """Contexts: flags that are saved under a name, such as one for each cluster.

    A flag takes precedence over its variable, and a variable over the context. The file is
    $XDG_CONFIG_HOME/nstance/contexts.json, usually in ~/.config."""


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return sorted(each for each in contexts.load().named if each.startswith(incomplete))


context_argument = click.argument("context", type=name, shell_complete=_complete)
dry_run_flag = click.option("--dry-run", is_flag=True, help="Check it; change nothing.")


def _settings_flags(function: Function) -> Function:
    for setting in reversed(contexts.SETTINGS):
        spelling = f"--{setting.replace('_', '-')}"
        function = click.option(spelling, metavar="VALUE", help=f"The default of {spelling}.")(function)
    return function


@command.command("set", examples=SET_EXAMPLES)
@context_argument
@_settings_flags
@click.option(
    "--unset", multiple=True, metavar="FLAG", help="Remove a flag, such as shard, from the context; repeatable."
)
@dry_run_flag
def set_context(context: str, unset: tuple[str, ...], dry_run: bool, **flags: str | None) -> None:
    """Create CONTEXT, or change the flags that are given. The first context becomes the current one."""
    import os

    from nstance.admin import errors

    removed = [each.removeprefix("--").replace("-", "_") for each in unset]
    for each in removed:
        if each not in contexts.SETTINGS:
            raise click.UsageError(f"there is no flag {each}{errors.did_you_mean(each, contexts.SETTINGS)}")
    given = {key: value for key, value in flags.items() if value is not None}
    if not given and not removed:
        raise click.UsageError("nothing to set: give at least one flag, such as --servers")
    _check(given)
    if "identity_dir" in given:
        given["identity_dir"] = os.path.abspath(os.path.expanduser(given["identity_dir"]))
    found = contexts.load()
    before = found.named.get(context, {})
    settings = {key: value for key, value in {**before, **given}.items() if key not in removed}
    _save(found.put(context, settings), dry_run=dry_run)


def _check(given: dict[str, str]) -> None:
    """With the types of the flags themselves."""
    from nstance.admin import shard_flags

    checks: dict[str, Any] = {"servers": shard_flags.servers, "timeout": shard_flags.timeout}
    for key in ("shard", "tenant", "cluster_id"):
        checks[key] = name
    for key, value in given.items():
        if key in checks:
            try:
                checks[key](value)
            except click.BadParameter as problem:
                raise click.BadParameter(problem.message, param_hint=f"--{key.replace('_', '-')}") from problem


@command.command(examples="nstance-admin context use prod\n")
@context_argument
@dry_run_flag
def use(context: str, dry_run: bool) -> None:
    """Make CONTEXT the current one, for all later commands of this user."""
    _save(contexts.load().use(context), dry_run=dry_run)


@command.command(examples=DELETE_EXAMPLES)
@context_argument
@dry_run_flag
def delete(context: str, dry_run: bool) -> None:
    """Delete CONTEXT. What its flags lead to stays as it is."""
    _save(contexts.load().delete(context), dry_run=dry_run)


def _save(changed: contexts.Contexts, *, dry_run: bool) -> None:
    if dry_run:
        output.note("dry run: nothing was changed")
        return
    contexts.save(changed)
    output.note(f"the current context is {changed.current}" if changed.current else "no context is current")


@command.command("list", examples=LIST_EXAMPLES)
@format_flag
def list_contexts(form: str) -> None:
    """List contexts. The current one is used unless --context or NSTANCE_CONTEXT says otherwise."""
    found = contexts.load()
    rows = [
        {"name": each, "current": each == found.current, **settings} for each, settings in sorted(found.named.items())
    ]
    if form == "table":
        rows = [{**row, "current": "yes" if row["current"] else ""} for row in rows]
    output.print_rows(rows, form, columns=COLUMNS, unbroken=("name",))


@command.command(examples=SHOW_EXAMPLES)
@click.argument("context", type=name, required=False, shell_complete=_complete)
@format_flag
def show(context: str | None, form: str) -> None:
    """Show the flags of CONTEXT, by default of the one that is used."""
    import os

    found = contexts.load()
    chosen = context or os.environ.get(contexts.VARIABLE) or found.current
    if chosen is None:
        raise click.UsageError("no context is current; choose one with `nstance-admin context use`")
    record = {"name": chosen, "current": chosen == found.current, **found.find(chosen)}
    output.print_record(record, form)
