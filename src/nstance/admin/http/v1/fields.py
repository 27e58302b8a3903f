"""The parameters and body fields of requests: each is checked and described from one definition."""

import datetime
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from nstance.admin.http.problems import ProblemError
from nstance.admin.json_schema import Schema
from nstance.model import ids

MAX_COUNT = 2**31 - 1
MAX_PAGE = 1_000
MAX_TEXT = 4_096
MAX_VARS = 1_000
MAX_VAR = 16 * MAX_TEXT
MAX_SLOT = 10**18

Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value: what it is in words, its schema, and whether a JSON value is one."""

    expected: str
    schema: Schema
    check: Check
    parse: Callable[[str], Any] = str  # from a query


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _is_map(value: Any) -> bool:
    is_small = isinstance(value, dict) and len(value) <= MAX_VARS
    return is_small and all(isinstance(each, str) and len(each) <= MAX_VAR for each in value.values())


def _number(text: str) -> Any:
    return int(text) if re.fullmatch("[0-9]{1,19}", text) else text


def _flag(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


def _counted(most: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _pattern(expected: str, pattern: str) -> Kind:
    return Kind(
        expected=expected,
        schema={"type": "string", "pattern": f"^(?:{pattern})$"},
        check=lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None,
    )


def choice(*values: str) -> Kind:
    schema: Schema = {"type": "string", "enum": list(values)}
    return Kind(expected=f"one of {', '.join(values)}", schema=schema, check=lambda value: value in values)


NAME = Kind(
    expected="a name of lower-case letters, digits and single dashes, at most 32",
    schema={"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": ids.MAX_NAME},
    check=lambda value: isinstance(value, str) and ids.is_name(value),
)
INSTANCE = Kind(
    expected="an instance ID such as wrk-01jw51srryegh9snf9cmeh3k4q",
    schema={"type": "string", "pattern": "^[a-z]{3}-[0-7][0-9a-hjkmnp-tv-z]{25}$"},
    check=lambda value: isinstance(value, str) and ids.is_instance_id(value),
)
TEXT = Kind(
    expected=f"a text of at most {MAX_TEXT} characters, all of them printable",
    schema={"type": "string", "maxLength": MAX_TEXT},
    check=_is_text,
)
COUNT = Kind(
    expected=f"a whole number from 0 to {MAX_COUNT}",
    schema={"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
    check=_is_count,
    parse=_number,
)
PAGE_SIZE = Kind(
    expected=f"a whole number from 1 to {MAX_PAGE}",
    schema={"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 100},
    check=_counted(MAX_PAGE),
    parse=_number,
)
EVENT_LIMIT = Kind(
    expected=f"a whole number from 0 to {MAX_PAGE}",
    schema={"type": "integer", "minimum": 0, "maximum": MAX_PAGE, "default": 100},
    check=lambda value: _is_count(value) and value <= MAX_PAGE,
    parse=_number,
)
SLOT = Kind(
    expected="the number of a journal slot",
    schema={"type": "integer", "minimum": 1, "maximum": MAX_SLOT},
    check=_counted(MAX_SLOT),
    parse=_number,
)
FLAG = Kind(
    expected="true or false",
    schema={"type": "boolean"},
    check=lambda value: isinstance(value, bool),
    parse=_flag,
)


def time(text: str) -> float:
    """Raises ValueError."""
    found = datetime.datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and time(value) is not None
    except (ValueError, OverflowError):
        return False


TIME = Kind(
    expected="a time such as 2026-01-31T12:00:00Z",
    schema={"type": "string", "format": "date-time"},
    check=_is_time,
)
HEAD = _pattern("a head as SLOT:HASH", "[1-9][0-9]{0,18}:[0-9a-f]{64}")
CURSOR = _pattern("the value of `next` of the page before", "[a-z0-9-]{1,32}(/[a-z0-9-]{1,64})?")
POSITIONS = _pattern(
    "the value of `next` of an answer", "[a-z0-9-]{1,32}=[0-9]{1,19}(,[a-z0-9-]{1,32}=[0-9]{1,19}){0,999}|"
)
REASONS = _pattern("reason codes separated by commas, at most 50", "[a-z-]{1,32}(,[a-z-]{1,32}){0,49}")
VARS = Kind(
    expected="an object of texts",
    schema={
        "type": "object",
        "maxProperties": MAX_VARS,
        "additionalProperties": {"type": "string", "maxLength": MAX_VAR},
    },
    check=_is_map,
)
TEXTS = Kind(
    expected="a list of texts",
    schema={"type": "array", "maxItems": MAX_VARS, "items": TEXT.schema},
    check=lambda value: isinstance(value, list) and len(value) <= MAX_VARS and all(map(_is_text, value)),
)
OBJECT = Kind(expected="an object", schema={"type": "object"}, check=lambda value: isinstance(value, dict))
HOURS = Kind(
    expected="a number of hours from 0.05 to 48",
    schema={"type": "number", "minimum": 0.05, "maximum": 48},
    check=lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0.05 <= value <= 48,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    kind: Kind
    about: str
    required: bool = False


Fields = Mapping[str, Field]


def field(kind: Kind, about: str, *, required: bool = False) -> Field:
    return Field(kind=kind, about=about, required=required)


def read_query(request: web.Request, fields: Fields) -> dict[str, Any]:
    """Raises ProblemError for what is unknown, repeated, missing or not of its kind."""
    if repeated := sorted(name for name in set(request.query) if len(request.query.getall(name)) > 1):
        raise ProblemError(400, f"expected {', '.join(repeated)} once, found it several times")
    values = {name: fields[name].kind.parse(text) for name, text in request.query.items() if name in fields}
    return _checked(values, fields, unknown=sorted(set(request.query) - set(fields)), what="query")


async def read_body(request: web.Request, fields: Fields) -> dict[str, Any]:
    """A JSON object with these fields. Raises ProblemError."""
    if not fields:
        return {}
    if not request.can_read_body and not any(each.required for each in fields.values()):
        return {}
    if request.content_type != "application/json":
        raise ProblemError(415, "expected Content-Type: application/json")
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise ProblemError(400, f"expected a JSON object with {', '.join(fields)}") from None
    if not isinstance(body, dict):
        raise ProblemError(400, f"expected a JSON object with {', '.join(fields)}")
    return _checked(body, fields, unknown=sorted(set(body) - set(fields)), what="field")


def _checked(values: dict[str, Any], fields: Fields, *, unknown: list[str], what: str) -> dict[str, Any]:
    if unknown:
        names = ", ".join(name[:64] for name in unknown[:10])
        raise ProblemError(400, f"unknown {what} {names}; expected {', '.join(fields) or 'none'}")
    for name, each in fields.items():
        if each.required and name not in values:
            raise ProblemError(400, f"{name}: expected {each.kind.expected}, found nothing")
        if name in values and not each.kind.check(values[name]):
            raise ProblemError(400, f"{name}: expected {each.kind.expected}")
    return values


def object_schema(fields: Fields) -> Schema:
    return {
        "type": "object",
        "properties": {name: {**each.kind.schema, "description": each.about} for name, each in fields.items()},
        "required": [name for name, each in fields.items() if each.required],
        "additionalProperties": False,
    }
