"""The commands of docs/admin.md that work on the bucket, run by a shell in their order over a directory."""

import asyncio
import subprocess
from pathlib import Path

from component.admin_cluster_world import HISTORY, KEY, authority
from nstance.objects import file
from nstance.objects.port import Key
from support import docs_pages

SERVE = "nstance-admin serve &"  # from here on test_admin_shard_docs.py runs them


def test_the_commands_about_the_bucket_work_in_their_order(tmp_path: Path) -> None:
    store = file.FileStore(tmp_path / "bucket")
    asyncio.run(authority(store, create=True))
    for number, body in HISTORY.items():
        asyncio.run(store.create(Key(f"shard/zone-a/journal/{number:020d}.json"), body))
    typed = {line for block in docs_pages.blocks("admin.md", "sh") for line in block.splitlines()}
    runnable = docs_pages.runnable("admin.md")
    commands = [each for each in runnable[: runnable.index(SERVE)] if each.splitlines()[0] in typed]
    assert sum(command.count("nstance-admin cluster ") for command in commands) >= 13
    # The page's bucket is in S3; all else is as printed.
    script = "\n".join(commands).replace(
        "--storage-bucket my-bucket", "--storage-provider file --storage-bucket bucket"
    )
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=docs_pages.environment(
            NSTANCE_ENCRYPTION_KEY=KEY, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / "config")
        ),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / ".nstance/identity/tls.crt").exists()
    assert '"current": "prod"' in (tmp_path / "config/nstance/contexts.json").read_text()
    assert (tmp_path / "db-password.txt").read_text() == "s3cret"
    assert (tmp_path / "ca.crt").read_text().count("BEGIN CERTIFICATE") == 2
    assert "cluster/ca.sealed" in ran.stdout
    asyncio.run(authority(store, key="another-key-of-32-bytes-12345678"))
