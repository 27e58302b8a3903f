"""`nstance-admin completion`."""

import click
from click import shell_completion

from nstance.admin.help import Choice, Command

EXAMPLES = """\
bash, in ~/.bashrc:   eval "$(nstance-admin completion bash)"
zsh, in ~/.zshrc:     eval "$(nstance-admin completion zsh)"
fish:                 nstance-admin completion fish > ~/.config/fish/completions/nstance-admin.fish
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL."""
    from nstance.admin import main

    kind = shell_completion.get_completion_class(shell)
    assert kind is not None
    script = kind(main.root, {}, main.PROGRAM, "_NSTANCE_ADMIN_COMPLETE")
    # Not `source()`: it starts bash to find its version.
    click.echo(kind.source_template % script.source_vars())
