"""The functions of templates: Go's, and a few that configurations need.

The value comes last, for pipelines such as `{{ .Vars.name | replace "." "-" | upper }}`. A function gets a `Context` and
arguments of checked types, and raises `UnlocatedError`. `and` and `or` are here by name only: the interpreter evaluates
their arguments lazily.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nstance.gotemplate import go_format, go_json, values
from nstance.gotemplate.errors import UnlocatedError
from nstance.gotemplate.limits import Budget
from nstance.gotemplate.printf import Printer, Report
from nstance.gotemplate.values import Value, ValueType


@dataclass(frozen=True, slots=True)
class Context:
    budget: Budget
    report: Report  # called for a missing key that is printed
    subject: str = "(…)"  # the first argument as written, for the name of a missing key

    def printer(self) -> Printer:
        return Printer(self.budget, self.report)

    def text(self, value: Value) -> str:
        return value if isinstance(value, str) else self.printer().value(value).text()


@dataclass(frozen=True, slots=True)
class Signature:
    call: Callable[..., Value]
    parameters: tuple[ValueType | None, ...]  # None: any type
    variadic: bool = False  # any number of arguments after the parameters


def _at_most(first: Value, second: Value) -> bool:
    return values.is_less(first, second) or values.is_equal(first, [second])


def _shquote(context: Context, value: Value) -> str:
    return "'" + context.text(value).replace("'", "'\\''") + "'"


def _upper(context: Context, text: str) -> str:
    """Maps each letter to one letter, as Go does: ß stays."""
    return text.upper() if text.isascii() else "".join(map(_upper_letter, text))


def _upper_letter(letter: str) -> str:
    for changed in (letter.upper(), letter.title()):
        if len(changed) == 1:
            return changed
    return letter


def _lower(context: Context, text: str) -> str:
    return text.lower() if text.isascii() else "".join(letter.lower()[0] for letter in text)


_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def _replace(context: Context, old: str, new: str, text: str) -> str:
    context.budget.reserve_characters(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def _join(context: Context, separator: str, parts: Value) -> str:
    context.budget.spend_steps(len(parts))
    context.budget.reserve_characters(len(parts) * len(separator))
    printer = context.printer()
    for number, part in enumerate(parts):
        if number:
            printer.put(separator)
        printer.value(part)
    return printer.text()


def _split(context: Context, separator: str, text: str) -> list[str]:
    context.budget.spend_steps(text.count(separator))
    return text.split(separator) if separator else list(text)


def _b64dec(context: Context, text: str) -> str:
    try:
        data = values.encode(text).translate(None, b"\r\n")
        return values.decode(base64.b64decode(data, validate=True))
    except binascii.Error:
        raise UnlocatedError("not base64; expected the standard alphabet with padding") from None


def _indent(context: Context, width: int, text: str) -> str:
    if width < 0:
        raise UnlocatedError(f"indent by {width}; expected 0 or more")
    context.budget.reserve_characters(len(text) + width * (text.count("\n") + 1))
    padding = " " * width
    return padding + text.replace("\n", "\n" + padding)


_TEXT = (ValueType.TEXT,)

FUNCTIONS: Mapping[str, Signature] = {
    "eq": Signature(lambda _, first, *others: values.is_equal(first, others), (None,), variadic=True),
    "ne": Signature(lambda _, first, second: not values.is_equal(first, [second]), (None, None)),
    "lt": Signature(lambda _, first, second: values.is_less(first, second), (None, None)),
    "le": Signature(lambda _, first, second: _at_most(first, second), (None, None)),
    "gt": Signature(lambda _, first, second: not _at_most(first, second), (None, None)),
    "ge": Signature(lambda _, first, second: not values.is_less(first, second), (None, None)),
    "not": Signature(lambda _, value: not values.is_true(value), (None,)),
    "len": Signature(lambda _, value: values.length(value), (None,)),
    "index": Signature(
        lambda context, value, *keys: values.get_index(value, keys, path=context.subject), (None,), variadic=True
    ),
    "print": Signature(lambda context, *arguments: context.printer().print(arguments).text(), (), variadic=True),
    "println": Signature(lambda context, *arguments: context.printer().println(arguments).text(), (), variadic=True),
    "printf": Signature(
        lambda context, template, *arguments: context.printer().printf(template, arguments).text(), _TEXT, variadic=True
    ),
    "default": Signature(lambda _, fallback, value: value if values.is_true(value) else fallback, (None, None)),
    "quote": Signature(lambda context, value: go_format.quote(context.text(value)), (None,)),
    "shquote": Signature(_shquote, (None,)),
    "upper": Signature(_upper, _TEXT),
    "lower": Signature(_lower, _TEXT),
    "trim": Signature(lambda _, text: text.strip(_SPACES), _TEXT),
    "replace": Signature(_replace, _TEXT * 3),
    "join": Signature(_join, (ValueType.TEXT, ValueType.LIST)),
    "split": Signature(_split, _TEXT * 2),
    "b64enc": Signature(lambda _, text: base64.b64encode(values.encode(text)).decode(), _TEXT),
    "b64dec": Signature(_b64dec, _TEXT),
    "toJson": Signature(lambda context, value: go_json.dump_json(value, context.budget), (None,)),
    "indent": Signature(_indent, (ValueType.INT, ValueType.TEXT)),
}

NAMES = frozenset(FUNCTIONS) | {"and", "or"}
