"""What the command line can do, the HTTP API can do: each command has its routes here, or the reason why not."""

from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest

from nstance.admin.http.v1 import groups, instances
from nstance.admin.http.v1.audit import AuditRoutes
from nstance.admin.http.v1.bucket import BucketRoutes
from nstance.admin.http.v1.events import EventRoutes
from nstance.admin.http.v1.shards import ShardRoutes
from nstance.admin.main import root

KEY = "needs the encryption key, which `serve` does not have"
WRITES = "writes the bucket, which `serve` only reads"
HERE = "is about files of the person who types it"
GROUP, INSTANCE = "/v1/groups/{group}", "/v1/instances/{instance}"

COMMANDS: Mapping[str, str | tuple[str, ...]] = {
    "audit export": ("GET /v1/cluster/audit",),
    "audit list": ("GET /v1/cluster/audit",),
    "audit verify": ("GET /v1/cluster/audit/verify",),
    "cluster backup": KEY,
    "cluster ca rotate": KEY,
    "cluster ca show": ("GET /v1/cluster/ca",),
    "cluster config get": ("GET /v1/cluster/config",),
    "cluster config put": WRITES,
    "cluster drain-all": ("PATCH /v1/groups/{group}", "POST /v1/instances/{instance}/release", "GET /v1/status"),
    "cluster journal": ("GET /v1/cluster/journal",),
    "cluster nonce": KEY,
    "cluster nonce-key rotate": KEY,
    "cluster nonce-key show": KEY,
    "cluster operators": ("GET /v1/cluster/operators",),
    "cluster register-operator": KEY,
    "cluster rekey": KEY,
    "cluster restore": KEY,
    "cluster revoke-operator": ("POST /v1/operators/{operator}/revoke",),
    "cluster secret get": KEY,
    "cluster secret list": KEY,
    "cluster secret put": KEY,
    "cluster secret rm": KEY,
    "completion": HERE,
    "config diff": ("GET /v1/config/diff",),
    "config refresh": ("POST /v1/config/refresh",),
    "config status": ("GET /v1/config",),
    "context delete": HERE,
    "context list": HERE,
    "context set": HERE,
    "context show": HERE,
    "context use": HERE,
    "doctor": "looks from where it is typed: clocks, ports, permissions",
    "events": ("GET /v1/events",),
    "group create": ("POST /v1/groups",),
    "group delete": (f"DELETE {GROUP}",),
    "group history": (f"GET {GROUP}/history",),
    "group list": ("GET /v1/groups",),
    "group pause": (f"POST {GROUP}/pause", "POST /v1/pause"),
    "group plan": (f"GET {GROUP}/plan", f"POST {GROUP}/plan"),
    "group resume": (f"POST {GROUP}/resume", "POST /v1/resume"),
    "group resume-rollout": (f"POST {GROUP}/resume-rollout",),
    "group rollback": (f"POST {GROUP}/rollback",),
    "group scale": (f"POST {GROUP}/scale",),
    "group show": (f"GET {GROUP}",),
    "group update": (f"PATCH {GROUP}",),
    "instance adopt": (f"POST {INSTANCE}/adopt",),
    "instance create": ("POST /v1/instances",),
    "instance delete": (f"DELETE {INSTANCE}",),
    "instance drained": (f"POST {INSTANCE}/drained",),
    "instance list": ("GET /v1/instances", "GET /v1/unknown-vms"),
    "instance logs": ("GET /v1/events",),
    "instance release": (f"POST {INSTANCE}/release",),
    "instance replace": (f"POST {INSTANCE}/replace",),
    "instance show": (f"GET {INSTANCE}",),
    "serve": "is the HTTP API",
    "status": ("GET /v1/status", "GET /v1/alarms"),
    "token create": HERE,
    "token list": HERE,
    "token revoke": HERE,
    "top": ("GET /v1/watch",),
    "wait": ("GET /v1/status", "GET /v1/watch"),
}
# Options that are about the terminal, or that every request has in another way.
USUAL = {"form", "shard", "all_shards", "tenant", "servers", "identity_dir", "timeout", "debug", "context", "dry_run"}
USUAL |= {"wait", "within", "group", "template", "deleted", "unknown"}


def commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        assert found is not None
        yield from commands(found, f"{name} {each}".strip())


FOUND = dict(commands(root))


def test_every_command_has_a_route_or_a_reason() -> None:
    described = set()
    for kind in (ShardRoutes, groups.Groups, instances.Instances, EventRoutes, BucketRoutes, AuditRoutes):
        made: Any = object.__new__(kind)
        described |= {f"{route.method} {route.path}" for route in made.routes()}
    assert COMMANDS.keys() == FOUND.keys()
    used = {route for routes in COMMANDS.values() if not isinstance(routes, str) for route in routes}
    assert used <= described


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("group create", groups.NEW),
        ("group update", {**groups.SETTINGS, **groups.UNSET}),
        ("group plan", {**groups.SETTINGS, **groups.UNSET}),
        ("instance create", instances.NEW),
    ],
)
def test_a_change_takes_every_option_of_its_command(command: str, fields: Mapping[str, object]) -> None:
    options = {parameter.name for parameter in FOUND[command].params}
    assert options - USUAL <= fields.keys()
