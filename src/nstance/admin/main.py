"""`nstance-admin`: the command line.

A new command group is one line in `COMMANDS` and a module in `commands/`.
"""

import io
import os
import sys

import click

from nstance import streams
from nstance.admin.help import LazyGroup, global_flags

PROGRAM = "nstance-admin"

COMMANDS = {
    "cluster": (
        "nstance.admin.commands.cluster:command",
        "Manage nonces, operators, the CA, secrets, configs and journals",
    ),
    "config": (
        "nstance.admin.commands.shard_config:command",
        "Show, reload and compare the config that a shard runs with",
    ),
    "group": (
        "nstance.admin.commands.group_rollout:command",
        "List, create, scale, change, roll back and delete groups",
    ),
    "instance": ("nstance.admin.commands.instance:command", "List, create, replace and delete instances"),
    "events": ("nstance.admin.commands.events:command", "Show what happened, and why"),
    "audit": ("nstance.admin.commands.audit:command", "Show who did what, and check that the journal is unaltered"),
    "status": ("nstance.admin.commands.status:command", "Show shards, leaders, groups and problems on one screen"),
    "doctor": ("nstance.admin.commands.doctor:command", "Check clocks, storage, certificates, ports and versions"),
    "token": ("nstance.admin.commands.token:command", "Manage the tokens of people for serve"),
    "serve": ("nstance.admin.commands.serve:command", "Serve an HTTP API"),
    "wait": ("nstance.admin.commands.wait:command", "Wait until groups are stable"),
    "top": ("nstance.admin.commands.top:command", "Watch shards, groups and instances live on a terminal"),
    "context": ("nstance.admin.commands.context:command", "Save flags under a name, and choose between them"),
    "completion": ("nstance.admin.commands.completion:command", "Print the completion script for your shell"),
}

EXAMPLES = """\
export NSTANCE_ADMIN_SERVERS=us-west-2a=10.0.0.1:8993,us-west-2b=10.1.0.1:8993
nstance-admin status --all-shards
nstance-admin top
nstance-admin group scale web 20 --shard us-west-2a --dry-run
nstance-admin events --all-shards --follow
nstance-admin cluster nonce --storage-bucket my-bucket --output nonce.jwt
nstance-admin cluster config put --shard us-west-2a config.jsonc --dry-run
nstance-admin cluster journal --shard us-west-2a --follow
eval "$(nstance-admin completion bash)"
"""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    examples=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="nstance", prog_name=PROGRAM)
@global_flags
def root() -> None:
    """Manage Nstance clusters.

    Exits with 0 on success, 1 on failure and 2 on wrong usage."""
    if os.environ.get("NO_COLOR"):
        click.get_current_context().color = False


def main() -> None:
    streams.reopen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for terminals without these characters
    root.main(prog_name=PROGRAM)
