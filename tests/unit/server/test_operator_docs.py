"""The file that docs/groups.md shows is one that a server takes."""

import re
from pathlib import Path

from nstance.config import dynamic as dynamics
from nstance.config import resolve
from nstance.model.ids import GroupKey, GroupName, TenantId
from unit.server.test_operator_edits import settings

PAGE = Path(__file__).parents[3] / "docs" / "groups.md"


def test_the_example_is_valid() -> None:
    [example] = re.findall(r"```jsonc\n(.*?)```", PAGE.read_text(), re.DOTALL)
    configured = settings(groups={"acme": {"api": {"template": "web", "size": 2, "subnet_pool": "other"}}})
    groups = resolve.resolve_groups(configured, dynamics.parse(example))
    sizes = {key.name: (resolved.group.size, resolved.group.paused) for key, resolved in groups.items()}
    assert sizes == {"api": (5, True), "workers": (3, False)}
    assert groups[GroupKey(TenantId("acme"), GroupName("workers"))].group.drain_timeout == 120.0


def test_the_limits_are_the_real_ones() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"{dynamics.MAX_TENANT_GROUPS:,} dynamic groups" in text
    assert f"{dynamics.MAX_TENANT_INSTANCES:,} instances" in text
    assert dynamics.MAX_TENANT_BYTES == 1 << 20
