"""The `checks` block of a template: what an agent checks before its instance is ready."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StrictBool, StrictInt, WithJsonSchema, model_validator

from nstance.config.model import scalars
from nstance.config.model.scalars import Block, invalid

MAX_CHECKS = 32
MAX_ARGUMENTS = 64
MAX_ARGUMENT_CHARACTERS = 4096
MAX_TOTAL_ARGUMENT_CHARACTERS = 64 * 1024  # all checks go to agents in one message
MAX_COUNT = 100
MIN_INTERVAL_SECONDS = 0.1
MAX_TIMEOUT_SECONDS = 300.0

_PATH = re.compile(r"/[!-~]{0,2047}")
_UNIT = re.compile(r"[A-Za-z0-9@_.\\:][A-Za-z0-9@_.\\:-]{0,254}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

UNHEALTHY_AFTER = "unhealthy_after"  # the only key of the block that is not a check


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _argument(value: str) -> str:
    if len(value) > MAX_ARGUMENT_CHARACTERS or "\0" in value:
        raise invalid(
            f"expected an argument of at most {MAX_ARGUMENT_CHARACTERS:,} characters without a null character"
        )
    return value


def _command(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not value[0].strip():
        raise invalid("expected a program and its arguments, found none")
    if len(value) > MAX_ARGUMENTS:
        raise invalid(f"expected at most {MAX_ARGUMENTS} arguments, found {len(value):,}")
    return value


def _interval(value: float) -> float:
    if value < MIN_INTERVAL_SECONDS:
        raise invalid("expected an interval of at least 100ms")
    return value


def _timeout(value: float) -> float:
    if value > MAX_TIMEOUT_SECONDS:
        raise invalid("expected a timeout of at most 5m")
    return value


Port = Annotated[StrictInt, Field(ge=1, le=65535)]
Times = Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)]


class _Check(Block):
    interval: Annotated[scalars.Period, AfterValidator(_interval)] = Field(
        default=5.0, description="time between two runs"
    )
    timeout: Annotated[scalars.Period, AfterValidator(_timeout)] = Field(
        default=2.0, description="a run that takes longer fails"
    )
    failures: Times = Field(default=3, description="failed runs in a row until the check fails")
    successes: Times = Field(default=1, description="successful runs in a row until the check passes")
    start_period: scalars.Duration = Field(
        default=0.0, description="failures in this time after the start do not count"
    )


class HttpCheck(_Check):
    """`GET http://127.0.0.1:<port><path>`: a status from 200 to 399 passes."""

    kind: Literal["http"]
    port: Port
    path: Annotated[
        str,
        AfterValidator(scalars.matching(_PATH, "a path that starts with / and has no spaces")),
        WithJsonSchema({"type": "string", "pattern": "^/"}),
    ] = "/"
    tls: StrictBool = False


class TcpCheck(_Check):
    """Passes if a port of the instance accepts connections."""

    kind: Literal["tcp"]
    port: Port


class CommandCheck(_Check):
    """Passes if a program exits with code 0. It runs without a shell."""

    kind: Literal["command"]
    argv: Annotated[tuple[Annotated[str, AfterValidator(_argument)], ...], AfterValidator(_command)]


class SystemdCheck(_Check):
    """Passes if a systemd unit is active."""

    kind: Literal["systemd"]
    unit: Annotated[str, AfterValidator(scalars.matching(_UNIT, 'the name of a systemd unit such as "nginx.service"'))]


CheckSpec = HttpCheck | TcpCheck | CommandCheck | SystemdCheck
CHECK_KINDS = ("http", "tcp", "command", "systemd")


class Checks(Block):
    """Checks by name, and one reserved key."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Annotated[CheckSpec, Field(discriminator="kind")]]

    unhealthy_after: scalars.Period | None = Field(
        default=None, description="an instance is replaced after a check failed for this long; default: never"
    )

    @model_validator(mode="before")
    @classmethod
    def _limit_count(cls, data: Any) -> Any:
        if isinstance(data, dict) and (count := len(data.keys() - {UNHEALTHY_AFTER})) > MAX_CHECKS:
            raise invalid(f"expected at most {MAX_CHECKS} checks, found {count:,}")
        return data

    @model_validator(mode="after")
    def _check_contents(self) -> Self:
        if self.unhealthy_after is not None and not self.by_name:
            raise invalid("expected at least one check with unhealthy_after, found none")
        commands = [check.argv for check in self.by_name.values() if isinstance(check, CommandCheck)]
        if sum(len(argument) for argv in commands for argument in argv) > MAX_TOTAL_ARGUMENT_CHARACTERS:
            raise invalid(
                f"expected at most {MAX_TOTAL_ARGUMENT_CHARACTERS:,} characters in the argv of all checks together"
            )
        return self

    @property
    def by_name(self) -> Mapping[str, CheckSpec]:
        return self.__pydantic_extra__ or {}
