"""The scalar types of the configuration. Each has its rule, its error message and its JSON Schema."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    StrictInt,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nstance.config import addresses, durations
from nstance.config.errors import quoted
from nstance.model import ids

MAX_TEXT_CHARACTERS = 64 * 1024
MAX_GROUP_SIZE = 10_000

_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SECRET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*")
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?")

T = TypeVar("T")


Rule = tuple[Callable[[Any], bool], str]  # whether it holds, and what is expected


class Block(BaseModel):
    """An object in the configuration. It is frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    rules: ClassVar[tuple[Rule, ...]] = ()  # between its keys

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if broken := [expected for holds, expected in self.rules if not holds(self)]:
            raise invalid(f"expected {'; '.join(broken)}")
        return self


AS_WRITTEN = "as written"  # the context of a dump that will be parsed again: durations are written with units


def dump_as_written(block: BaseModel) -> dict[str, object]:
    """The block as in a file, without values that equal their default."""
    return block.model_dump(mode="json", exclude_defaults=True, context=AS_WRITTEN)


def _seconds(value: float, info: SerializationInfo) -> object:
    return durations.format(value) if info.context == AS_WRITTEN else value


def invalid(sentence: str) -> PydanticCustomError:
    """An error whose message users see as it is."""
    # The sentence is an argument, not the template: user input may contain braces.
    return PydanticCustomError("nstance", "{sentence}", {"sentence": sentence})


def _parsed_by(parse: Callable[[str], T]) -> Callable[[object], object]:
    """A validator for text that `parse` converts. Its ValueError becomes the message."""

    def validate(value: object) -> object:
        if not isinstance(value, str):
            raise invalid(f"expected text in quotes, found {describe_type(value)}")
        try:
            return parse(value)
        except ValueError as error:
            raise invalid(f"{error}, found {quoted(value)}") from None

    return validate


def matching(pattern: re.Pattern[str], expected: str) -> Callable[[str], str]:
    """A validator for text."""

    def validate(value: str) -> str:
        if not pattern.fullmatch(value):
            raise invalid(f"expected {expected}, found {quoted(value)}")
        return value

    return validate


_OTHER_NAMES = {"mock": "memory", "google": "gcp"}


def provider_name(value: object) -> object:
    """A provider's usual name."""
    return _OTHER_NAMES.get(value, value) if isinstance(value, str) else value


def describe_type(value: object) -> str:
    """The type of a JSON value, for a message. Text is not repeated: in the wrong place it may be a secret."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


def check_name(value: str) -> str:
    if not ids.is_name(value):
        raise invalid(
            f"expected a name of lowercase letters, digits and single hyphens, at most {ids.MAX_NAME} long, "
            f"found {quoted(value)}"
        )
    return value


def _kind(value: str) -> str:
    if not ids.is_kind(value):
        raise invalid(f"expected a kind of three lowercase letters, found {quoted(value)}")
    if value == ids.OPERATOR_KIND:
        raise invalid(f"expected another kind than {quoted(value)}, which is reserved for operators")
    return value


def _check_length(value: str) -> str:
    if len(value) > MAX_TEXT_CHARACTERS:
        raise invalid(f"expected at most {MAX_TEXT_CHARACTERS:,} characters, found {len(value):,}")
    return value


def _check_not_empty(value: str) -> str:
    if not value.strip():
        raise invalid("expected text that is not empty, found none")
    return _check_length(value)


def _file_name(value: str) -> str:
    plain = (
        value and not value.startswith(".") and "/" not in value and value.isprintable() and len(value.encode()) <= 255
    )
    if not plain:
        raise invalid(
            "expected a plain file name (no slash, no leading dot, no control characters, at most 255 bytes), "
            f"found {quoted(value)}"
        )
    return value


def _public_key(value: str) -> str:
    if not _file_name(value).endswith(".pub") or value == ".pub":
        raise invalid(f'expected a key name that ends in ".pub", found {quoted(value)}')
    return value


def key_prefix(value: str) -> str:
    if value and not _PREFIX.fullmatch(value):
        raise invalid(
            f'expected a key prefix such as "cluster/" (plain names joined by slashes), found {quoted(value)}'
        )
    return value if not value or value.endswith("/") else value + "/"


_DURATION_SCHEMA = {
    "anyOf": [{"type": "string", "pattern": "^(0|([0-9]+(\\.[0-9]+)?(ns|us|µs|ms|s|m|h|d))+)$"}, {"const": 0}],
    "examples": ["300ms", "1h30m", "7d", "0"],
}


def _duration(value: object) -> object:
    # Defaults are floats already. In a file, 0 is the only number without a unit.
    if value == 0 and isinstance(value, int) and not isinstance(value, bool):
        return 0.0
    if isinstance(value, int | float | bool):
        raise invalid(f'expected a duration with its unit, such as "30s", found {describe_type(value)}')
    return _parsed_by(durations.parse)(value)


def _lifetime(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 < value * 3600 <= durations.MAX_SECONDS:
            raise invalid(f"expected a number of hours above 0 and below 100 years, found {value}")
        return value * 3600.0
    seconds = _duration(value)
    if seconds == 0:
        raise invalid("expected a lifetime longer than 0")
    return seconds


def _ip(version: int) -> Callable[[str], str]:
    def validate(value: str) -> str:
        try:
            matches = not value or ipaddress.ip_address(value).version == version
        except ValueError:
            matches = False
        if not matches:
            raise invalid(f"expected an IPv{version} address, found {quoted(value)}")
        return value

    return validate


def _host(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        if not _HOST.fullmatch(value) or len(value) > 253:
            raise invalid(
                f"expected a host name or an address, without a scheme, port or path, found {quoted(value)}"
            ) from None
    return value.lower()


def _positive(value: float) -> float:
    if value <= 0:
        raise invalid("expected a duration longer than 0")
    return value


Text = Annotated[str, AfterValidator(_check_length)]
NonEmptyText = Annotated[str, AfterValidator(_check_not_empty)]
_NAME_SCHEMA = WithJsonSchema(
    {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "maxLength": ids.MAX_NAME}
)
Name = Annotated[str, AfterValidator(check_name), _NAME_SCHEMA]
ClusterId = Annotated[ids.ClusterId, AfterValidator(check_name), _NAME_SCHEMA]
ShardId = Annotated[ids.ShardId, AfterValidator(check_name), _NAME_SCHEMA]
Kind = Annotated[str, AfterValidator(_kind), WithJsonSchema({"type": "string", "pattern": "^[a-z]{3}$"})]
Label = Annotated[
    str, AfterValidator(matching(_LABEL, "a name of letters, digits, dots, hyphens and underscores (at most 64)"))
]
Variable = Annotated[
    str, AfterValidator(matching(_VARIABLE, "a variable name of letters, digits, dots, hyphens and underscores"))
]
EnvironmentName = Annotated[
    str, AfterValidator(matching(_ENVIRONMENT, "the name of an environment variable (letters, digits, underscores)"))
]
SecretName = Annotated[
    str, AfterValidator(matching(_SECRET, "a secret's name of letters, digits, dots, hyphens and underscores"))
]
NONCE_KEY = "registration-nonce.key"  # the secret that signs nonces


def _not_ours(value: object) -> object:
    if value == NONCE_KEY:
        raise invalid(f"expected another secret than {quoted(value)}, which signs registration nonces")
    return value


UserSecret = Annotated[SecretName, BeforeValidator(_not_ours)]
HostName = Annotated[str, AfterValidator(_host)]
FileName = Annotated[str, AfterValidator(_file_name)]
PublicKeyName = Annotated[str, AfterValidator(_public_key), WithJsonSchema({"type": "string", "pattern": "\\.pub$"})]
Prefix = Annotated[str, AfterValidator(key_prefix)]
Ip4 = Annotated[str, AfterValidator(_ip(4))]
Ip6 = Annotated[str, AfterValidator(_ip(6))]
Count = Annotated[StrictInt, Field(ge=0, le=MAX_GROUP_SIZE)]
_AS_WRITTEN = PlainSerializer(_seconds)
Duration = Annotated[float, BeforeValidator(_duration), _AS_WRITTEN, WithJsonSchema(_DURATION_SCHEMA)]
Period = Annotated[
    float, AfterValidator(_positive), BeforeValidator(_duration), _AS_WRITTEN, WithJsonSchema(_DURATION_SCHEMA)
]
Lifetime = Annotated[
    float,
    BeforeValidator(_lifetime),
    _AS_WRITTEN,
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0, "description": "hours"}, _DURATION_SCHEMA]}),
]
Bind = Annotated[
    addresses.Address,
    BeforeValidator(_parsed_by(addresses.parse)),
    WithJsonSchema({"type": "string", "examples": ["0.0.0.0:8990", ":8990"]}),
]
Advertise = Annotated[
    addresses.Advertised,
    BeforeValidator(_parsed_by(addresses.parse_advertised)),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.1:8992", "10.0.0.1:8992,10.0.0.2:8992"]}),
]
Vars = Mapping[Variable, Text]
Args = Mapping[str, object]
