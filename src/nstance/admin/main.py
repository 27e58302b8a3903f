"""`nstance-admin`: the command line for people without Kubernetes.

A new command group is one line in `COMMANDS` and a module in `commands/`.
"""

import io
import os
import sys

import click

from nstance import streams
from nstance.admin.help import LazyGroup, debug_flag

PROGRAM = "nstance-admin"

COMMANDS = {
    "cluster": ("nstance.admin.commands.cluster:command", "Nonces, operators, CA, secrets, configs and journals"),
    "config": ("nstance.admin.commands.shard_config:command", "Which config a shard runs with; read it again"),
    "group": ("nstance.admin.commands.groups:command", "List, make, scale, change, roll back, pause and delete groups"),
    "instance": ("nstance.admin.commands.instance:command", "List, make, replace and delete instances"),
    "events": ("nstance.admin.commands.events:command", "What happened, and why"),
    "status": ("nstance.admin.commands.status:command", "Shards, leaders, groups and trouble on one screen"),
    "serve": ("nstance.admin.commands.serve:command", "Serve an HTTP API"),
    "wait": ("nstance.admin.commands.wait:command", "Wait until groups are stable"),
    "completion": ("nstance.admin.commands.completion:command", "Print the completion script for your shell"),
}

EXAMPLES = """\
export NSTANCE_ADMIN_SERVERS=us-west-2a=10.0.0.1:8993,us-west-2b=10.1.0.1:8993
nstance-admin status --all-shards
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
@debug_flag
def root() -> None:
    """Look after Nstance clusters.

    Exits with 0 on success, 1 on failure, 2 on wrong usage."""
    if os.environ.get("NO_COLOR"):
        click.get_current_context().color = False


def main() -> None:
    streams.reopen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without these letters shows their numbers
    root.main(prog_name=PROGRAM)
