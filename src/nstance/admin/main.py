"""`nstance-admin`: the command line for people without Kubernetes.

A new command group is one line in `COMMANDS` and a module in `commands/`.
"""

import os

import click

from nstance.admin.help import LazyGroup, debug_flag

PROGRAM = "nstance-admin"

COMMANDS = {
    "cluster": ("nstance.admin.commands.cluster:command", "Nonces, operators, CA, secrets, configs and journals"),
    "completion": ("nstance.admin.commands.completion:command", "Print the completion script for your shell"),
}

EXAMPLES = """\
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
    root.main(prog_name=PROGRAM)
