"""`cluster backup` and `cluster restore`."""

from pathlib import Path

import click

from nstance.admin import output
from nstance.admin.event_loop import run
from nstance.admin.help import Command
from nstance.admin.options import Target, dry_run_flag, format_flag, target_flags

BACKUP_EXAMPLES = """\
nstance-admin cluster backup nstance.backup --storage-bucket my-bucket
nstance-admin cluster backup latest.backup --storage-bucket my-bucket --force
"""
RESTORE_EXAMPLES = """\
nstance-admin cluster restore nstance.backup --storage-bucket my-new-bucket
nstance-admin cluster restore nstance.backup --storage-bucket my-bucket --overwrite --dry-run
"""


def _on_progress(done: int, text: str) -> None:
    output.note(f"{text} ({done} objects)" if done else text)


@click.command(cls=Command, examples=BACKUP_EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@format_flag
@target_flags
def backup(target: Target, file: Path, force: bool, form: str) -> None:
    """Back up all of Nstance's objects in the bucket to FILE, and verify it.

    Servers may keep running. Each shard is backed up as of one slot of its journal. Encrypted secrets stay encrypted;
    unencrypted ones are left out unless --insecure-dev is given. FILE is readable only by you. An existing FILE is replaced
    only with --force, and only by a complete backup."""
    from nstance.admin.cluster import backup as work

    if not file.parent.is_dir():
        raise click.BadParameter(f"there is no directory {file.parent}; create it first", param_hint="FILE")
    if file.exists() and not force:
        raise click.BadParameter(
            f"{file} exists and may be your only backup; choose another name, or give --force", param_hint="FILE"
        )
    manifest, left_out = run(work.backup(target, file, _on_progress))
    for key in left_out:
        output.note(f"left out, because it is not encrypted: {key}")
    record = {
        "file": str(file),
        "cluster": manifest.cluster,
        "objects": len(manifest.objects),
        "bytes": file.stat().st_size,
        "shards": [
            f"{name} (slot {state.slot}, epoch {state.epoch}, {state.instances} instances)"
            for name, state in manifest.shards.items()
        ],
        "left_out": left_out,
    }
    output.print_record(record, form)


@click.command(cls=Command, examples=RESTORE_EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace the state of these shards in the bucket.")
@click.option("--force", is_flag=True, help="Restore even if a server seems to lead a shard.")
@format_flag
@target_flags
@dry_run_flag
def restore(target: Target, file: Path, overwrite: bool, force: bool, form: str) -> None:
    """Restore the backup FILE into the bucket, and verify it.

    Stop all servers first. VMs that are newer than the backup are not deleted: when servers run again, they are adopted
    or held (see `nstance-admin instance list --unknown`)."""
    from nstance.admin.cluster import restore as work

    permission = work.Permission(overwrite=overwrite, running=force)
    outcome = run(work.restore(target, file, permission, _on_progress))
    for key in outcome.kept:
        output.note(f"kept, because the bucket has it with other content: {key}")
    record = {
        "file": str(file),
        "made": output.timestamp(outcome.manifest.created),
        "written": outcome.written,
        "unchanged": outcome.same,
        "removed": outcome.removed,
        "kept": outcome.kept,
        "shards": [f"{name} (slot {state.slot})" for name, state in outcome.manifest.shards.items()],
    }
    output.print_record(record, form)
