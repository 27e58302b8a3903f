"""The base of all commands: help with examples, modules that load late, errors in one line."""

import errno
import importlib
import os
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Lazy = Mapping[str, tuple[str, str]]  # name → ("module:attribute", one line of help)

_DEBUG = "nstance.admin.debug"
_CONTEXT = "nstance.admin.context"


class Choice(click.Choice[str]):
    """Says which choice was probably meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        from nstance.admin.errors import did_you_mean

        known = [str(each) for each in self.choices]
        return f"expected one of {', '.join(known)}, found {str(value)[:64]!r}{did_you_mean(str(value), known)}"


class SharedOption(click.Option):
    """An option of many commands; help lists it after the command's own."""


def global_flags(command: F) -> F:
    """--debug and --context. They work before and after the command's name."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.find_root().meta[_DEBUG] = True

    def apply_context(context: click.Context, _: click.Parameter, value: str | None) -> None:
        from nstance.admin import contexts

        root = context.find_root()
        if context is root:
            root.meta[_CONTEXT] = value or os.environ.get(contexts.VARIABLE)
            return
        settings = contexts.settings(value or root.meta.get(_CONTEXT))
        # Only flags that also have a variable: another flag may have the same name and another meaning.
        names = {each.name for each in context.command.params if getattr(each, "envvar", None)}
        context.default_map = {name: text for name, text in settings.items() if name in names}

    debug = click.option(
        "--debug",
        cls=SharedOption,
        is_flag=True,
        expose_value=False,
        callback=remember,
        envvar="NSTANCE_ADMIN_DEBUG",
        help="Show the traceback of an error.",
    )
    chosen = click.option(
        "--context",
        cls=SharedOption,
        is_eager=True,  # it gives other flags their defaults
        expose_value=False,
        callback=apply_context,
        metavar="NAME",
        shell_complete=_complete_context,
        help="Use the flags of this context; see `nstance-admin context`. Default: NSTANCE_CONTEXT, or the current one.",
    )
    return debug(chosen(command))


def _complete_context(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from nstance.admin import contexts

    return sorted(name for name in contexts.load().named if name.startswith(incomplete))


class OneLineUsageError(click.UsageError):
    """One line, like every other error, and exit code 2."""

    def __init__(self, problem: click.UsageError, context: click.Context) -> None:
        text = problem.format_message()
        if isinstance(problem, click.NoSuchOption) and problem.option_name[1:2].isdigit():  # such as -1
            text = f"expected a number of 0 or more, found {problem.option_name!r}"
        super().__init__(text, context)

    def show(self, file: IO[Any] | None = None) -> None:
        assert self.ctx is not None
        text = self.format_message().removesuffix(".")
        text = text[:1].lower() + text[1:]
        click.echo(
            f"nstance-admin: {text}{'' if text.endswith('?') else ';'} see `{self.ctx.command_path} --help`",
            file=file,
            err=True,
        )


def _with_one_line_errors(context: click.Context, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (click.exceptions.NoArgsIsHelpError, OneLineUsageError):
        raise
    except click.UsageError as problem:
        raise OneLineUsageError(problem, context) from problem


def _is_text(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_text, value))
    return not isinstance(value, str) or not any("\ud800" <= letter <= "\udfff" for letter in value)


class _CommandWithExamples(click.Command):
    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parsed: list[str] = _with_one_line_errors(ctx, lambda: super(_CommandWithExamples, self).parse_args(ctx, args))
        _with_one_line_errors(ctx, lambda: self._check_text(ctx))
        return parsed

    def _check_text(self, ctx: click.Context) -> None:
        """Only file names may be bytes that are not text; everything else is sent as UTF-8."""
        for param in self.get_params(ctx):
            if not isinstance(param.type, click.Path) and not _is_text(ctx.params.get(param.name or "")):
                raise click.BadParameter("expected text in UTF-8", ctx, param)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        shared = [option for option in options if isinstance(option, SharedOption)]
        own = [option for option in options if not isinstance(option, SharedOption)]
        for title, listed in (("Options", own), ("Shared options", shared)):
            rows = [row for option in listed if (row := option.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self._examples:
            with formatter.section("Examples"):
                for line in self._examples.strip().splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Command(_CommandWithExamples):
    def invoke(self, ctx: click.Context) -> Any:
        """Turns every error into one line; --debug adds the traceback."""
        try:
            return _with_one_line_errors(ctx, lambda: super(Command, self).invoke(ctx))
        except (click.ClickException, click.exceptions.Exit, click.Abort, EOFError):
            raise
        except Exception as problem:
            if isinstance(problem, OSError) and problem.errno == errno.EPIPE:
                raise  # the reader closed the pipe; click exits quietly
            from nstance.admin import errors

            debug = bool(ctx.find_root().meta.get(_DEBUG))
            raise errors.ExitError(errors.explain(problem), problem if debug else None) from problem


class Group(_CommandWithExamples, click.Group):
    """The commands of one module."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from nstance.admin.errors import did_you_mean

        name, known = args[0], self.list_commands(ctx)  # click does not see commands that are not imported yet
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            near = did_you_mean(name, known)
            raise OneLineUsageError(click.UsageError(f"no such command {name[:64]!r}{near}"), ctx)
        found: tuple[str | None, click.Command | None, list[str]]
        found = _with_one_line_errors(ctx, lambda: super(Group, self).resolve_command(ctx, args))
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class LazyGroup(Group):
    """Commands in modules of their own, imported when called. Their one-line help is given here, so that listing them
    imports nothing."""

    def __init__(self, *args: Any, lazy: Lazy, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name][1]) for name in self.list_commands(ctx)])
