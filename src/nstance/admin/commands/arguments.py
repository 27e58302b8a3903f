"""Arguments and flags that name something in a shard, with completion from the running shards."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from nstance.admin.options import Function, instance_or_prefix, name, positive

Decorator = Callable[[Function], Function]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def from_shards(kind: str) -> Complete:
    """Completes a group, instance, template or instance-type."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from nstance.admin.shard import completion

        return [CompletionItem(word, help=text) for word, text in completion.words(kind, incomplete, ctx.params)]

    return complete


def group_option(help: str, **more: Any) -> Decorator:
    return click.option("--group", type=name, metavar="GROUP", shell_complete=from_shards("group"), help=help, **more)


def template_option(help: str, **more: Any) -> Decorator:
    return click.option("--template", metavar="TEMPLATE", shell_complete=from_shards("template"), help=help, **more)


def instance_type_option(help: str, **more: Any) -> Decorator:
    complete = from_shards("instance-type")
    return click.option("--instance-type", metavar="TYPE", shell_complete=complete, help=help, **more)


within_flag = click.option(
    "--within", type=positive, default="10m", show_default=True, metavar="DURATION", help="The longest wait."
)


def wait_flags(command: Function) -> Function:
    """--wait and --within."""
    wait = click.option("--wait", is_flag=True, help="Wait until it is done, as `nstance-admin wait` does.")
    return wait(within_flag(command))


group_argument = click.argument("group", type=name, shell_complete=from_shards("group"))
optional_group_argument = click.argument("group", type=name, required=False, shell_complete=from_shards("group"))
instance_argument = click.argument("instance", type=instance_or_prefix, shell_complete=from_shards("instance"))
