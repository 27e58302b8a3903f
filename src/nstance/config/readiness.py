"""The `checks` block of a template: what an agent probes before its instance counts as ready."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StrictBool, StrictInt, WithJsonSchema, model_validator

from nstance.config import fields
from nstance.config.errors import quoted
from nstance.config.fields import Block, wrong

MAX_CHECKS = 32
MAX_ARGUMENTS = 64
MAX_ARGUMENT = 4096  # characters of one of them
MAX_ALL_ARGUMENTS = 64 * 1024  # characters: agents are told all checks in one message
MAX_COUNT = 100
MIN_INTERVAL_SECONDS = 0.1
MAX_TIMEOUT_SECONDS = 300.0

_PATH = re.compile(r"/[!-~]{0,2047}")
_UNIT = re.compile(r"[A-Za-z0-9@_.\\:][A-Za-z0-9@_.\\:-]{0,254}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

UNHEALTHY_AFTER = "unhealthy_after"  # the one key of the block that is no check


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _path(value: str) -> str:
    if not _PATH.fullmatch(value):
        raise wrong(f"expected a path that starts with / and has no spaces, found {quoted(value)}")
    return value


def _unit(value: str) -> str:
    if not _UNIT.fullmatch(value):
        raise wrong(f'expected the name of a systemd unit such as "nginx.service", found {quoted(value)}')
    return value


def _argument(value: str) -> str:
    if len(value) > MAX_ARGUMENT or "\0" in value:
        raise wrong(f"expected an argument of at most {MAX_ARGUMENT:,} characters without a null character")
    return value


def _command(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not value[0].strip():
        raise wrong("expected a program and its arguments, found none")
    if len(value) > MAX_ARGUMENTS:
        raise wrong(f"expected at most {MAX_ARGUMENTS} arguments, found {len(value):,}")
    return value


def _interval(value: float) -> float:
    if value < MIN_INTERVAL_SECONDS:
        raise wrong("expected an interval of at least 100ms")
    return value


def _timeout(value: float) -> float:
    if value > MAX_TIMEOUT_SECONDS:
        raise wrong("expected a timeout of at most 5m")
    return value


Port = Annotated[StrictInt, Field(ge=1, le=65535)]
Times = Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)]


class _Check(Block):
    interval: Annotated[fields.Period, AfterValidator(_interval)] = Field(
        default=5.0, description="from one run to the next"
    )
    timeout: Annotated[fields.Period, AfterValidator(_timeout)] = Field(
        default=2.0, description="a run that takes longer has failed"
    )
    failures: Times = Field(default=3, description="in a row until the check fails")
    successes: Times = Field(default=1, description="in a row until the check passes")
    start_period: fields.Duration = Field(default=0.0, description="failures within it do not count")


class HttpCheck(_Check):
    """`GET http://127.0.0.1:<port><path>`: any answer from 200 to 399 passes."""

    kind: Literal["http"]
    port: Port
    path: Annotated[str, AfterValidator(_path), WithJsonSchema({"type": "string", "pattern": "^/"})] = "/"
    tls: StrictBool = False


class TcpCheck(_Check):
    """Something accepts connections on this port of the instance."""

    kind: Literal["tcp"]
    port: Port


class CommandCheck(_Check):
    """A program that ends with exit code 0. No shell is involved."""

    kind: Literal["command"]
    argv: Annotated[tuple[Annotated[str, AfterValidator(_argument)], ...], AfterValidator(_command)]


class SystemdCheck(_Check):
    """A systemd unit that is active."""

    kind: Literal["systemd"]
    unit: Annotated[str, AfterValidator(_unit)]


CheckSpec = HttpCheck | TcpCheck | CommandCheck | SystemdCheck
CHECK_KINDS = ("http", "tcp", "command", "systemd")


class Checks(Block):
    """From a check's name to the check, and one reserved key."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Annotated[CheckSpec, Field(discriminator="kind")]]

    unhealthy_after: fields.Period | None = Field(
        default=None, description="an instance with a check that fails for so long is replaced; left out: never"
    )

    @model_validator(mode="before")
    @classmethod
    def _are_few(cls, data: Any) -> Any:
        if isinstance(data, dict):
            count = len(data.keys() - {UNHEALTHY_AFTER})
            if count > MAX_CHECKS:
                raise wrong(f"expected at most {MAX_CHECKS} checks, found {count:,}")
        return data

    @model_validator(mode="after")
    def _has_checks(self) -> Self:
        if self.unhealthy_after is not None and not self.by_name:
            raise wrong("expected a check beside unhealthy_after, found none")
        commands = [check.argv for check in self.by_name.values() if isinstance(check, CommandCheck)]
        if sum(len(argument) for argv in commands for argument in argv) > MAX_ALL_ARGUMENTS:
            raise wrong(f"expected at most {MAX_ALL_ARGUMENTS:,} characters in the argv of all checks together")
        return self

    @property
    def by_name(self) -> Mapping[str, CheckSpec]:
        return self.__pydantic_extra__ or {}
