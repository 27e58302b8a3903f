"""The commands of docs/access.md, in their order, over a bucket with a journal."""

import json
import os
import subprocess
from pathlib import Path

from component import admin_cluster_world
from component.admin_cluster_world import HISTORY, KEY, Bucket, write_slot
from nstance.admin.http.oidc import settings
from nstance.model.roles import Role
from support import docs_pages

bucket = admin_cluster_world.bucket


def test_the_commands_of_the_page_work_in_their_order(bucket: Bucket, tmp_path: Path) -> None:
    for number, body in HISTORY.items():
        write_slot(bucket, number, body)
    (bucket.root / "shard" / "a").rename(bucket.root / "shard" / "zone-a")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(docs_pages.runnable("access.md"))],
        cwd=tmp_path,
        env=docs_pages.environment(NSTANCE_ENCRYPTION_KEY=KEY, HOME=os.environ.get("HOME", "/")),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "viewer" / "tls.crt").exists()
    assert (tmp_path / "ada.token").read_text().startswith("nst_")
    assert [role for role in ("viewer", "admin") if role in done.stdout] == ["viewer", "admin"]
    assert "problems" in done.stdout


def test_the_settings_of_the_page_are_accepted(tmp_path: Path) -> None:
    [block] = docs_pages.blocks("access.md", "jsonc")
    (tmp_path / "oidc.json").write_text(block)
    (tmp_path / "oidc-secret").write_text("a-long-random-text\n")
    found = settings.load(tmp_path / "oidc.json")
    assert json.loads(block).keys() <= settings.KNOWN
    right = found.right(["everybody", "shop-developers"])
    assert right == settings.Right(Role.OPERATOR, settings.TenantId("shop"))
