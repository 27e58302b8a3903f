"""The commands of docs/admin.md that work on the bucket, run by a shell in their order over a directory."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from component.admin_cluster_world import HISTORY, KEY, authority
from nstance.objects import file
from nstance.objects.port import Key

PAGE = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()


def test_the_commands_about_the_bucket_work_in_their_order(tmp_path: Path) -> None:
    store = file.FileStore(tmp_path / "bucket")
    asyncio.run(authority(store, create=True))
    for number, body in HISTORY.items():
        asyncio.run(store.create(Key(f"shard/zone-a/journal/{number:020d}.json"), body))
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert sum(block.count("nstance-admin cluster ") for block in blocks) >= 12
    program = f'nstance-admin() {{ "{sys.executable}" -m nstance.admin "$@"; }}\n'
    script = "set -euo pipefail\n" + program + "".join(blocks)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NSTANCE_")}
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment | {"NSTANCE_ENCRYPTION_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "db-password.txt").read_text() == "s3cret"
    assert (tmp_path / "ca.crt").read_text().count("BEGIN CERTIFICATE") == 2
    assert "cluster/ca.sealed" in ran.stdout
    asyncio.run(authority(store, key="another-key-of-32-bytes-12345678"))
