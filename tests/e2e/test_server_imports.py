"""A server has the memory of only what is configured: other clouds, stores and programs are never imported."""

import re
from pathlib import Path

import pytest

from e2e.processes import settings, shard_world
from support.eventually import wait_for

pytestmark = pytest.mark.e2e

UNUSED = {
    "configparser",
    "ctypes",
    "difflib",
    "nstance.admin",
    "nstance.agent",
    "nstance.aws",
    "nstance.dev",
    "nstance.gcp",
    "nstance.kube",
    "nstance.objects.gcs",
    "nstance.objects.s3",
    "nstance.operator",
    "nstance.providers.aws",
    "nstance.providers.gcp",
    "nstance.providers.memory",
    "nstance.providers.proxmox",
    "nstance.providers.qemu",
    "nstance.providers.tmux",
    "nstance.proxmox",
    "nstance.secretstore.aws.key_sources",
    "nstance.secretstore.gcp.key_sources",
    "nstance.server.validation",
    "nstance.sim",
    "nstance.telemetry.otlp",
    "obstore",
    "xml",
    "yaml",
}


def test_a_leader_with_processes_and_files_imports_nothing_else(tmp_path: Path) -> None:
    with shard_world(tmp_path) as world:
        world.configure(settings(world, web={"template": "plain", "size": 1}))
        leader = world.start("a", env={"PYTHONPROFILEIMPORTTIME": "1"})
        wait_for("the group is whole", world.running(1))
        imported = set(re.findall(r"^import time:.*\| +(\S+)$", leader.log.read_text(), re.MULTILINE))
    assert {"nstance.providers.process", "nstance.objects.file"} <= imported
    assert imported & UNUSED == set()
