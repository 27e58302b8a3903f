"""JSON as Go's encoder writes it: sorted keys, no spaces, and `<`, `>`, `&` escaped."""

import json
import math
import re

from nstance.gotemplate import go_format
from nstance.gotemplate.errors import UnlocatedError
from nstance.gotemplate.limits import Budget
from nstance.gotemplate.values import Value, ValueType, sorted_items, type_of

# Python does not escape these. An invalid byte becomes the replacement character, as in Go.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_INVALID = re.compile(r"[\ud800-\udfff]")


def dump_json(value: Value, budget: Budget) -> str:
    pieces: list[str] = []
    _write(value, budget, pieces, depth=0)
    return "".join(pieces)


def _write(value: Value, budget: Budget, pieces: list[str], *, depth: int) -> None:
    budget.spend_steps()
    if depth > budget.depth:
        raise UnlocatedError(f"data nested more than {budget.depth} deep; expected less")
    match type_of(value):
        case ValueType.NIL:
            pieces.append("null")
        case ValueType.BOOL:
            pieces.append("true" if value else "false")
        case ValueType.INT:
            pieces.append(go_format.format_int(value, "d", go_format.Directive()) or "")
        case ValueType.FLOAT:
            pieces.append(_number(value))
        case ValueType.TEXT:
            pieces.append(_text(value, budget))
        case ValueType.LIST:
            pieces.append("[")
            for number, element in enumerate(value):
                pieces.append("," if number else "")
                _write(element, budget, pieces, depth=depth + 1)
            pieces.append("]")
        case ValueType.MAP:
            budget.spend_steps(len(value))
            pieces.append("{")
            for number, (key, element) in enumerate(sorted_items(value)):
                pieces.append(("," if number else "") + _text(key, budget) + ":")
                _write(element, budget, pieces, depth=depth + 1)
            pieces.append("}")


def _text(value: str, budget: Budget) -> str:
    budget.spend_characters(len(value))
    return _INVALID.sub(r"\\ufffd", json.dumps(value, ensure_ascii=False).translate(_ESCAPES))


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise UnlocatedError("a number without JSON form; expected a finite one")
    sign = "-" if math.copysign(1, value) < 0 else ""
    digits, exponent = go_format.digits_of(abs(value))
    if value != 0 and not 1e-6 <= abs(value) < 1e21:
        return sign + go_format.scientific(digits, exponent).replace("e-0", "e-")
    return sign + go_format.positional(digits, exponent)
