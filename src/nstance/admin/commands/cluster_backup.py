"""`cluster backup` and `cluster restore`."""

from pathlib import Path

import click

from nstance.admin import output
from nstance.admin.help import Command
from nstance.admin.options import Target, dry_run_flag, format_flag, target_flags
from nstance.admin.running import run

BACKUP_EXAMPLES = """\
nstance-admin cluster backup nstance.backup --storage-bucket my-bucket
"""
RESTORE_EXAMPLES = """\
nstance-admin cluster restore nstance.backup --storage-bucket my-new-bucket
nstance-admin cluster restore nstance.backup --storage-bucket my-bucket --overwrite --dry-run
"""


def _progress(done: int, what: str) -> None:
    output.note(f"{what} ({done} objects)" if done else what)


@click.command(cls=Command, examples=BACKUP_EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@format_flag
@target_flags
def backup(target: Target, file: Path, form: str) -> None:
    """Write everything that Nstance keeps in the bucket to FILE, and verify it.

    Servers may go on running. Each shard is backed up as of one slot of its journal. Sealed secrets stay sealed; secrets
    that are stored in clear are left out, unless --insecure-dev is given. FILE is readable only by you."""
    from nstance.admin.cluster import backup as work

    manifest, in_clear = run(work.backup(target, file, _progress))
    for key in in_clear:
        output.note(f"left out, because it is stored in clear: {key}")
    record = {
        "file": str(file),
        "cluster": manifest.cluster,
        "objects": len(manifest.objects),
        "bytes": file.stat().st_size,
        "shards": [
            f"{name} (slot {state.slot}, epoch {state.epoch}, {state.instances} instances)"
            for name, state in manifest.shards.items()
        ],
        "left_out": in_clear,
    }
    output.show_one(record, form)


@click.command(cls=Command, examples=RESTORE_EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="The bucket has state of these shards: replace it.")
@click.option("--force", is_flag=True, help="Restore although a server seems to lead a shard.")
@format_flag
@target_flags
@dry_run_flag
def restore(target: Target, file: Path, overwrite: bool, force: bool, form: str) -> None:
    """Put the backup FILE into the bucket, and verify it.

    Stop all servers first. VMs that are newer than the backup are not deleted: once servers run, they are adopted or
    held (see `nstance-admin instance list --unknown`)."""
    from nstance.admin.cluster import restore as work

    allowed = work.Permission(overwrite=overwrite, running=force)
    outcome = run(work.restore(target, file, allowed, _progress))
    for key in outcome.kept:
        output.note(f"kept, because it is there with another content: {key}")
    record = {
        "file": str(file),
        "made": output.when(outcome.manifest.created),
        "written": outcome.written,
        "unchanged": outcome.same,
        "removed": outcome.removed,
        "kept": outcome.kept,
        "shards": [f"{name} (slot {state.slot})" for name, state in outcome.manifest.shards.items()],
    }
    output.show_one(record, form)
