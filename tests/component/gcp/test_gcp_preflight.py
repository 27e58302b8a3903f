"""`nstance-server --validate --online` on Google Cloud: every fault at once, with its path, and nothing is changed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nstance.clock import SystemClock, SystemRng
from nstance.server import options, validation
from support.gcp.cloud import Cloud, google_cloud
from support.gcp.stand_in import PROJECT, REGION, ZONE


@pytest.fixture
async def cloud(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cloud]:
    async with google_cloud() as made:
        for name, value in made.stand_in.environment().items():
            monkeypatch.setenv(name, value)
        yield made


def document(tmp_path: Path, **args: Any) -> dict[str, Any]:
    (tmp_path / "secrets").mkdir(mode=0o700, exist_ok=True)
    return {
        "cluster": {"id": "demo", "secrets": {"provider": "file", "prefix": str(tmp_path / "secrets")}},
        "shard": {
            "infra": {"provider": "google", "region": REGION, "zone": ZONE, "options": {"project_id": PROJECT}},
            "subnet_pools": {"main": ["subnet-1"]},
        },
        "images": {"debian": {"filters": [{"name": "family", "values": ["debian-12"]}], "owners": [PROJECT]}},
        "load_balancers": {"public": {"provider": "gcp", "instance_group_name": "web"}},
        "templates": {
            "web": {"kind": "web", "instance_type": "e2-small", "args": {"SourceImage": "{{ .Image.debian }}", **args}}
        },
        "groups": {"default": {"web": {"template": "web", "size": 5, "load_balancers": ["public"]}}},
    }


async def validate(configured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is wrong, by path."""
    monkeypatch.setenv("NSTANCE_ENCRYPTION_KEY", "k" * 32)
    place = tmp_path / "bucket" / "shard" / "one"
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.jsonc").write_text(json.dumps(configured))
    words = ["--storage", "file", "--bucket", str(tmp_path / "bucket"), "--shard", "one", "--validate", "--online"]
    found = await validation.validate(options.parse(words, version=""), SystemClock(), SystemRng())
    return {problem.path: problem.message for problem in found}


async def test_a_right_configuration_has_no_fault(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.compute.groups["web"] = set()
    assert await validate(document(tmp_path), tmp_path, monkeypatch) == {}
    assert cloud.stand_in.calls["compute.instances.insert"] == 0


async def test_all_faults_are_found_with_their_paths(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = document(tmp_path, ServiceAccount="nobody@proj-1.iam.gserviceaccount.com")
    configured["images"]["debian"]["filters"][0]["values"] = ["none"]
    configured["images"]["debian"]["fallback"] = f"projects/{PROJECT}/global/images/older"
    configured["shard"]["subnet_pools"]["main"] = ["subnet-9"]
    configured["templates"]["web"]["instance_type"] = "z9-giant"
    cloud.stand_in.denied = {"compute.instances.create"}
    found = await validate(configured, tmp_path, monkeypatch)
    expected = {
        "images.debian": "there is no image debian",
        "load_balancers.public.instance_group_name": "there is no instance group",
        "shard.subnet_pools.main[0]": "there is no subnet subnet-9",
        "templates.web.instance_type": "there is no machine type z9-giant",
        "templates.web.args.SourceImage": f"there is no image projects/{PROJECT}/global/images/older",
        "templates.web.args.ServiceAccount": "there is no service account",
        "shard.infra": "Google denies compute.instances.create",
    }
    assert {path: found.get(path, "")[: len(text)] for path, text in expected.items()} == expected
    assert cloud.stand_in.calls["compute.instances.insert"] == 0
