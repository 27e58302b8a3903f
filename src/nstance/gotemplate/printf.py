"""`print`, `println` and `printf`. As in Go, a wrong format does not fail but prints `%!d(string=web)`.

A missing key prints as an empty string and is reported, where Go prints `<no value>`. An explicit nil prints as in Go.
"""

import re
from collections.abc import Callable, Sequence

from nstance.gotemplate import go_format
from nstance.gotemplate.errors import UnlocatedError
from nstance.gotemplate.go_format import Directive
from nstance.gotemplate.limits import Budget
from nstance.gotemplate.values import Absent, Value, ValueType, sorted_items, type_of

Report = Callable[[str], None]

_MAX_WIDTH = 1_000_000  # Go's own limit for a width or precision
_FLAGS = {"#": "sharp", "0": "zero", "+": "plus", "-": "minus", " ": "space"}
_DIGITS = re.compile(r"[0-9]+")


class Printer:
    """Collects pieces of text within a budget."""

    def __init__(self, budget: Budget, report: Report) -> None:
        self._budget = budget
        self._report = report
        self._pieces: list[str] = []

    def text(self) -> str:
        return "".join(self._pieces)

    def put(self, piece: str) -> "Printer":
        self._budget.spend_characters(len(piece))
        self._pieces.append(piece)
        return self

    def value(self, value: Value, verb: str = "v", directive: Directive | None = None, *, depth: int = 0) -> "Printer":
        """Returns itself, as all print methods do."""
        directive = directive or Directive()
        self._budget.spend_steps()
        directive.reserve(self._budget)
        if depth > self._budget.depth:
            raise UnlocatedError(f"data nested more than {self._budget.depth} deep; expected less")
        found = type_of(value)
        if isinstance(value, Absent) and value.name and verb in ("v", "s", "q", "x", "X"):
            self._report(value.name)
            value, found = "", ValueType.TEXT
        if verb == "T" and depth == 0:
            return self.put(directive.pad("<nil>" if found is ValueType.NIL else found.value))
        match found:
            case ValueType.NIL:
                return self._nil(verb, directive, depth)
            case ValueType.LIST | ValueType.MAP:
                return self._elements(value, verb, directive, depth)
            case ValueType.BOOL:
                text = directive.pad("true" if value else "false") if verb in ("v", "t") else None
            case ValueType.INT:
                text = go_format.format_int(value, verb, directive)
            case ValueType.FLOAT:
                text = go_format.format_float(value, verb, directive)
            case ValueType.TEXT:
                text = go_format.format_text(value, verb, directive)
        if text is not None:
            return self.put(text)
        return self.put(f"%!{verb}({found.value}=").value(value, "v", directive).put(")")

    def _nil(self, verb: str, directive: Directive, depth: int) -> "Printer":
        if depth:
            return self.put("interface {}(nil)" if directive.go_syntax else "<nil>")
        return self.put(directive.pad("<nil>") if verb == "v" else f"%!{verb}(<nil>)")

    def _elements(self, value: Value, verb: str, directive: Directive, depth: int) -> "Printer":
        """A list or a map."""
        if verb == "p":
            raise UnlocatedError("%p is not supported; expected %v")
        go, kind = directive.go_syntax, type_of(value)
        if kind is ValueType.MAP:
            self._budget.spend_steps(len(value))
        self.put(f"{kind.value}{{" if go else "map[" if kind is ValueType.MAP else "[")
        for number, element in enumerate(sorted_items(value) if kind is ValueType.MAP else value):
            if number:
                self.put(", " if go else " ")
            if kind is ValueType.MAP:
                key, element = element
                self.value(key, verb, directive, depth=depth + 1).put(":")
            self.value(element, verb, directive, depth=depth + 1)
        return self.put("}" if go else "]")

    def print(self, arguments: Sequence[Value]) -> "Printer":
        """Puts a space between two arguments if neither is a string."""
        texts = [type_of(argument) is ValueType.TEXT for argument in arguments]
        for number, argument in enumerate(arguments):
            if number and not texts[number] and not texts[number - 1]:
                self.put(" ")
            self.value(argument)
        return self

    def println(self, arguments: Sequence[Value]) -> "Printer":
        for number, argument in enumerate(arguments):
            if number:
                self.put(" ")
            self.value(argument)
        return self.put("\n")

    def printf(self, template: str, arguments: Sequence[Value]) -> "Printer":
        _Format(self, self._budget, template, arguments).run()
        return self


class _Format:
    """One pass over a format string."""

    def __init__(self, printer: Printer, budget: Budget, template: str, arguments: Sequence[Value]) -> None:
        self._printer = printer
        self._budget = budget
        self._template = template
        self._arguments = arguments
        self._position = 0
        self._argument = 0  # the next one
        self._is_index_valid = True  # of explicit indexes in this directive
        self._indexed = False  # an index was just parsed
        self._reordered = False
        self._bracket = -1  # the next closing bracket, found once for many opening ones

    def run(self) -> None:
        template = self._template
        while self._position < len(template):
            percent = template.find("%", self._position)
            if percent < 0:
                self._printer.put(template[self._position :])
                break
            self._printer.put(template[self._position : percent])
            self._position = percent + 1
            self._budget.spend_steps()
            self._directive()
        if not self._reordered and self._argument < len(self._arguments):
            self._extra()

    def _directive(self) -> None:
        directive = Directive()
        self._is_index_valid = True
        self._indexed = False
        while (flag := _FLAGS.get(self._current())) is not None:
            setattr(directive, flag, True)
            self._position += 1
        self._index()
        self._width(directive)
        if self._current() == "." and self._position + 1 < len(self._template):
            self._precision(directive)
        if not self._indexed:
            self._index()
        verb = self._current()
        if not verb:
            self._printer.put("%!(NOVERB)")
            return
        self._position += 1
        if verb == "%":
            self._printer.put("%")
        elif not self._is_index_valid:
            self._printer.put(f"%!{verb}(BADINDEX)")
        elif self._argument >= len(self._arguments):
            self._printer.put(f"%!{verb}(MISSING)")
        else:
            if verb == "v":
                directive.go_syntax, directive.sharp, directive.plus = directive.sharp, False, False
            self._printer.value(self._arguments[self._argument], verb, directive)
            self._argument += 1

    def _current(self) -> str:
        return self._template[self._position : self._position + 1]

    def _width(self, directive: Directive) -> None:
        if self._current() != "*":
            directive.width = self._number()
            if self._indexed and directive.width is not None:
                self._is_index_valid = False
            return
        width = self._argument_number("%!(BADWIDTH)")
        if width is not None and width < 0:
            width, directive.minus, directive.zero = -width, True, False
        directive.width = width

    def _precision(self, directive: Directive) -> None:
        self._position += 1
        if self._indexed:
            self._is_index_valid = False
        self._index()
        if self._current() != "*":
            directive.precision = self._number() or 0
            return
        directive.precision = self._argument_number("%!(BADPREC)", minimum=0)

    def _argument_number(self, message: str, *, minimum: int = -_MAX_WIDTH) -> int | None:
        """A width or precision that is an argument."""
        self._position += 1
        self._indexed = False
        value: Value = self._arguments[self._argument] if self._argument < len(self._arguments) else None
        self._argument = min(self._argument + 1, len(self._arguments))
        if type_of(value) is ValueType.INT and minimum <= value <= _MAX_WIDTH:
            return int(value)
        self._printer.put(message)
        return None

    def _number(self) -> int | None:
        found = _DIGITS.match(self._template, self._position)
        if found is None:
            return None
        if len(found.group().lstrip("0")) > 7:  # as in Go, the rest of the format is lost
            self._position = len(self._template)
            return None
        self._position = found.end()
        return int(found.group())

    def _index(self) -> None:
        """An explicit argument index such as [2], if there is one here."""
        self._indexed = False
        if self._current() != "[":
            return
        self._reordered = True
        start = self._position
        if self._bracket < start:
            self._bracket = self._template.find("]", start)
            if self._bracket < 0:
                self._bracket = len(self._template)
        if self._bracket >= len(self._template):
            self._is_index_valid = False
            self._position += 1
            return
        digits = self._template[start + 1 : self._bracket] if self._bracket - start <= 9 else ""
        self._position = self._bracket + 1
        self._indexed = _DIGITS.fullmatch(digits) is not None
        if self._indexed and 1 <= int(digits) <= len(self._arguments):
            self._argument = int(digits) - 1
        else:
            self._is_index_valid = False

    def _extra(self) -> None:
        self._printer.put("%!(EXTRA ")
        for number, argument in enumerate(self._arguments[self._argument :]):
            if number:
                self._printer.put(", ")
            if type_of(argument) is ValueType.NIL:
                self._printer.put("<nil>")
            else:
                self._printer.put(f"{type_of(argument).value}=")
                self._printer.value(argument)
        self._printer.put(")")
