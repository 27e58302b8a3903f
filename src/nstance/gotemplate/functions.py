"""The functions a template may call: Go's own, and a few that configurations need.

The subject comes last, so that pipelines read well: `{{ .Vars.name | replace "." "-" | upper }}`. A function gets a
`Context` and its arguments, already checked against its parameters; it raises `Fault` and knows no place. `and` and `or`
are here by name only: they evaluate their arguments lazily, which is the interpreter's business.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nstance.gotemplate import jsontext, scalars, values
from nstance.gotemplate.errors import Fault
from nstance.gotemplate.limits import Budget
from nstance.gotemplate.printf import Printer, Report
from nstance.gotemplate.values import Sort, Value


@dataclass(frozen=True, slots=True)
class Context:
    budget: Budget
    report: Report  # of a missing key that is printed
    subject: str = "(…)"  # the first argument as written, for the name of a missing key

    def printer(self) -> Printer:
        return Printer(self.budget, self.report)

    def text(self, value: Value) -> str:
        if isinstance(value, str):
            return value
        printer = self.printer()
        printer.value(value)
        return printer.text()


@dataclass(frozen=True, slots=True)
class Signature:
    call: Callable[..., Value]
    parameters: tuple[Sort | None, ...]  # None takes anything
    variadic: bool = False  # any number of arguments after the parameters


def _printf(context: Context, form: str, *arguments: Value) -> str:
    printer = context.printer()
    printer.printf(form, arguments)
    return printer.text()


def _print(context: Context, *arguments: Value) -> str:
    printer = context.printer()
    printer.print(arguments)
    return printer.text()


def _println(context: Context, *arguments: Value) -> str:
    printer = context.printer()
    printer.println(arguments)
    return printer.text()


def _index(context: Context, value: Value, *keys: Value) -> Value:
    return values.index(value, keys, path=context.subject)


def _at_most(first: Value, second: Value) -> bool:
    return values.less(first, second) or values.equal(first, [second])


def _default(context: Context, fallback: Value, value: Value) -> Value:
    return value if values.truth(value) else fallback


def _shquote(context: Context, value: Value) -> str:
    return "'" + context.text(value).replace("'", "'\\''") + "'"


def _upper(context: Context, text: str) -> str:
    """Letter by letter, as Go does it: a text keeps its number of characters, so ß stays."""
    return text.upper() if text.isascii() else "".join(map(_upper_letter, text))


def _upper_letter(letter: str) -> str:
    for changed in (letter.upper(), letter.title()):
        if len(changed) == 1:
            return changed
    return letter


def _lower(context: Context, text: str) -> str:
    return text.lower() if text.isascii() else "".join(letter.lower()[0] for letter in text)


_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def _trim(context: Context, text: str) -> str:
    return text.strip(_SPACES)


def _replace(context: Context, old: str, new: str, text: str) -> str:
    context.budget.room(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def _join(context: Context, separator: str, parts: Value) -> str:
    context.budget.step(len(parts))
    context.budget.room(len(parts) * len(separator))
    printer = context.printer()
    for place, part in enumerate(parts):
        if place:
            printer.put(separator)
        printer.value(part)
    return printer.text()


def _split(context: Context, separator: str, text: str) -> list[str]:
    context.budget.step(text.count(separator))
    return text.split(separator) if separator else list(text)


def _b64enc(context: Context, text: str) -> str:
    return base64.b64encode(values.encode(text)).decode()


def _b64dec(context: Context, text: str) -> str:
    try:
        data = values.encode(text).translate(None, b"\r\n")
        return values.decode(base64.b64decode(data, validate=True))
    except binascii.Error:
        raise Fault("not base64; expected the standard alphabet with padding") from None


def _indent(context: Context, width: int, text: str) -> str:
    if width < 0:
        raise Fault(f"indent by {width}; expected 0 or more")
    context.budget.room(len(text) + width * (text.count("\n") + 1))
    padding = " " * width
    return padding + text.replace("\n", "\n" + padding)


_TEXT = (Sort.TEXT,)

FUNCTIONS: Mapping[str, Signature] = {
    "eq": Signature(lambda _, first, *others: values.equal(first, others), (None,), variadic=True),
    "ne": Signature(lambda _, first, second: not values.equal(first, [second]), (None, None)),
    "lt": Signature(lambda _, first, second: values.less(first, second), (None, None)),
    "le": Signature(lambda _, first, second: _at_most(first, second), (None, None)),
    "gt": Signature(lambda _, first, second: not _at_most(first, second), (None, None)),
    "ge": Signature(lambda _, first, second: not values.less(first, second), (None, None)),
    "not": Signature(lambda _, value: not values.truth(value), (None,)),
    "len": Signature(lambda _, value: values.length(value), (None,)),
    "index": Signature(_index, (None,), variadic=True),
    "print": Signature(_print, (), variadic=True),
    "println": Signature(_println, (), variadic=True),
    "printf": Signature(_printf, _TEXT, variadic=True),
    "default": Signature(_default, (None, None)),
    "quote": Signature(lambda context, value: scalars.quoted(context.text(value)), (None,)),
    "shquote": Signature(_shquote, (None,)),
    "upper": Signature(_upper, _TEXT),
    "lower": Signature(_lower, _TEXT),
    "trim": Signature(_trim, _TEXT),
    "replace": Signature(_replace, _TEXT * 3),
    "join": Signature(_join, (Sort.TEXT, Sort.LIST)),
    "split": Signature(_split, _TEXT * 2),
    "b64enc": Signature(_b64enc, _TEXT),
    "b64dec": Signature(_b64dec, _TEXT),
    "toJson": Signature(lambda context, value: jsontext.dump(value, context.budget), (None,)),
    "indent": Signature(_indent, (Sort.INT, Sort.TEXT)),
}

NAMES = frozenset(FUNCTIONS) | {"and", "or"}
