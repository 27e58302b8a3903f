"""JSON as Go's encoder writes it: keys sorted, no spaces, and `<`, `>`, `&` escaped so that it may stand in HTML."""

import json
import math

from nstance.gotemplate import scalars
from nstance.gotemplate.errors import Fault
from nstance.gotemplate.limits import Budget
from nstance.gotemplate.values import Sort, Value, items, sort

# The standard encoder leaves these alone; an invalid byte becomes the replacement character, as in Go.
_ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    | {chr(code): "\\ufffd" for code in range(0xD800, 0xE000)}
)


def dump(value: Value, budget: Budget) -> str:
    pieces: list[str] = []
    _write(value, budget, pieces, depth=0)
    return "".join(pieces)


def _write(value: Value, budget: Budget, pieces: list[str], *, depth: int) -> None:
    budget.step()
    if depth > budget.depth:
        raise Fault(f"data nested more than {budget.depth} deep; expected less")
    match sort(value):
        case Sort.NIL:
            pieces.append("null")
        case Sort.BOOL:
            pieces.append("true" if value else "false")
        case Sort.INT:
            pieces.append(scalars.integer(value, "d", scalars.Directive()) or "")
        case Sort.FLOAT:
            pieces.append(_number(value))
        case Sort.TEXT:
            pieces.append(_text(value, budget))
        case Sort.LIST:
            pieces.append("[")
            for place, element in enumerate(value):
                pieces.append("," if place else "")
                _write(element, budget, pieces, depth=depth + 1)
            pieces.append("]")
        case Sort.MAP:
            budget.step(len(value))
            pieces.append("{")
            for place, (key, element) in enumerate(items(value)):
                pieces.append(("," if place else "") + _text(key, budget) + ":")
                _write(element, budget, pieces, depth=depth + 1)
            pieces.append("}")


def _text(value: str, budget: Budget) -> str:
    budget.handle(len(value))
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPES)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise Fault("a number without JSON form; expected a finite one")
    sign = "-" if math.copysign(1, value) < 0 else ""
    digits, exponent = scalars.digits_of(abs(value))
    if value != 0 and not 1e-6 <= abs(value) < 1e21:
        return sign + scalars.scientific(digits, exponent).replace("e-0", "e-")
    return sign + scalars.positional(digits, exponent)
