"""`print`, `println` and `printf`, faults in a format included: Go prints `%!d(string=web)` instead of failing.

A key that is not there prints as an empty text and is reported, where Go prints `<no value>`; that is this project's
rule. An explicit nil prints as in Go.
"""

import re
from collections.abc import Callable, Sequence

from nstance.gotemplate import scalars
from nstance.gotemplate.errors import Fault
from nstance.gotemplate.limits import Budget
from nstance.gotemplate.scalars import Directive
from nstance.gotemplate.values import Absent, Sort, Value, items, sort

Report = Callable[[str], None]

_HUGE = 1_000_000  # Go's own limit for a width or precision
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

    def put(self, piece: str) -> None:
        self._budget.handle(len(piece))
        self._pieces.append(piece)

    def value(self, value: Value, verb: str = "v", directive: Directive | None = None, *, depth: int = 0) -> None:
        directive = directive or Directive()
        self._budget.step()
        directive.reserve(self._budget)
        if depth > self._budget.depth:
            raise Fault(f"data nested more than {self._budget.depth} deep; expected less")
        found = sort(value)
        if isinstance(value, Absent) and value.name and verb in ("v", "s", "q", "x", "X"):
            self._report(value.name)
            value, found = "", Sort.TEXT
        if verb == "T" and depth == 0:
            self.put(directive.pad("<nil>" if found is Sort.NIL else found.value))
            return
        match found:
            case Sort.NIL:
                self._nil(verb, directive, depth)
                return
            case Sort.LIST:
                self._list(value, verb, directive, depth)
                return
            case Sort.MAP:
                self._map(value, verb, directive, depth)
                return
            case Sort.BOOL:
                text = directive.pad("true" if value else "false") if verb in ("v", "t") else None
            case Sort.INT:
                text = scalars.integer(value, verb, directive)
            case Sort.FLOAT:
                text = scalars.real(value, verb, directive)
            case Sort.TEXT:
                text = scalars.text(value, verb, directive)
        if text is not None:
            self.put(text)
        else:
            self.put(f"%!{verb}({found.value}=")
            self.value(value, "v", directive)
            self.put(")")

    def _nil(self, verb: str, directive: Directive, depth: int) -> None:
        if depth:
            self.put("interface {}(nil)" if directive.go_syntax else "<nil>")
        elif verb == "v":
            self.put(directive.pad("<nil>"))
        else:
            self.put(f"%!{verb}(<nil>)")

    def _list(self, value: Sequence[Value], verb: str, directive: Directive, depth: int) -> None:
        self._no_pointer(verb)
        go = directive.go_syntax
        self.put(f"{Sort.LIST.value}{{" if go else "[")
        for place, element in enumerate(value):
            if place:
                self.put(", " if go else " ")
            self.value(element, verb, directive, depth=depth + 1)
        self.put("}" if go else "]")

    def _map(self, value: Value, verb: str, directive: Directive, depth: int) -> None:
        self._no_pointer(verb)
        go = directive.go_syntax
        self._budget.step(len(value))
        self.put(f"{Sort.MAP.value}{{" if go else "map[")
        for place, (key, element) in enumerate(items(value)):
            if place:
                self.put(", " if go else " ")
            self.value(key, verb, directive, depth=depth + 1)
            self.put(":")
            self.value(element, verb, directive, depth=depth + 1)
        self.put("}" if go else "]")

    def _no_pointer(self, verb: str) -> None:
        if verb == "p":
            raise Fault("%p is not supported; expected %v")

    def print(self, arguments: Sequence[Value]) -> None:
        """A space goes between two neighbours of which neither is a text."""
        texts = [sort(argument) is Sort.TEXT for argument in arguments]
        for place, argument in enumerate(arguments):
            if place and not texts[place] and not texts[place - 1]:
                self.put(" ")
            self.value(argument)

    def println(self, arguments: Sequence[Value]) -> None:
        for place, argument in enumerate(arguments):
            if place:
                self.put(" ")
            self.value(argument)
        self.put("\n")

    def printf(self, form: str, arguments: Sequence[Value]) -> None:
        _Format(self, self._budget, form, arguments).run()


class _Format:
    """One walk over a format."""

    def __init__(self, printer: Printer, budget: Budget, form: str, arguments: Sequence[Value]) -> None:
        self._printer = printer
        self._budget = budget
        self._form = form
        self._arguments = arguments
        self._position = 0
        self._argument = 0  # the next one
        self._good = True  # explicit indexes of this directive make sense
        self._indexed = False  # an index was just read
        self._reordered = False
        self._bracket = -1  # the next closing one, found once for many opening ones

    def run(self) -> None:
        form = self._form
        while self._position < len(form):
            percent = form.find("%", self._position)
            if percent < 0:
                self._printer.put(form[self._position :])
                break
            self._printer.put(form[self._position : percent])
            self._position = percent + 1
            self._budget.step()
            self._directive()
        if not self._reordered and self._argument < len(self._arguments):
            self._extra()

    def _directive(self) -> None:
        directive = Directive()
        self._good = True
        self._indexed = False
        while (flag := _FLAGS.get(self._here())) is not None:
            setattr(directive, flag, True)
            self._position += 1
        self._index()
        self._width(directive)
        if self._here() == "." and self._position + 1 < len(self._form):
            self._precision(directive)
        if not self._indexed:
            self._index()
        verb = self._here()
        if not verb:
            self._printer.put("%!(NOVERB)")
            return
        self._position += 1
        if verb == "%":
            self._printer.put("%")
        elif not self._good:
            self._printer.put(f"%!{verb}(BADINDEX)")
        elif self._argument >= len(self._arguments):
            self._printer.put(f"%!{verb}(MISSING)")
        else:
            if verb == "v":
                directive.go_syntax, directive.sharp, directive.plus = directive.sharp, False, False
            self._printer.value(self._arguments[self._argument], verb, directive)
            self._argument += 1

    def _here(self) -> str:
        return self._form[self._position : self._position + 1]

    def _width(self, directive: Directive) -> None:
        if self._here() != "*":
            directive.width = self._number()
            if self._indexed and directive.width is not None:
                self._good = False
            return
        width = self._star("%!(BADWIDTH)")
        if width is not None and width < 0:
            width, directive.minus, directive.zero = -width, True, False
        directive.width = width

    def _precision(self, directive: Directive) -> None:
        self._position += 1
        if self._indexed:
            self._good = False
        self._index()
        if self._here() != "*":
            directive.precision = self._number() or 0
            return
        directive.precision = self._star("%!(BADPREC)", least=0)

    def _star(self, complaint: str, *, least: int = -_HUGE) -> int | None:
        """A width or precision that is an argument."""
        self._position += 1
        self._indexed = False
        value: Value = self._arguments[self._argument] if self._argument < len(self._arguments) else None
        self._argument = min(self._argument + 1, len(self._arguments))
        if sort(value) is Sort.INT and least <= value <= _HUGE:
            return int(value)
        self._printer.put(complaint)
        return None

    def _number(self) -> int | None:
        found = _DIGITS.match(self._form, self._position)
        if found is None:
            return None
        if len(found.group().lstrip("0")) > 7:  # as in Go, the rest of the format is lost
            self._position = len(self._form)
            return None
        self._position = found.end()
        return int(found.group())

    def _index(self) -> None:
        """An explicit argument index such as [2], if there is one here."""
        self._indexed = False
        if self._here() != "[":
            return
        self._reordered = True
        start = self._position
        if self._bracket < start:
            self._bracket = self._form.find("]", start)
            if self._bracket < 0:
                self._bracket = len(self._form)
        if self._bracket >= len(self._form):
            self._good = False
            self._position += 1
            return
        digits = self._form[start + 1 : self._bracket] if self._bracket - start <= 9 else ""
        self._position = self._bracket + 1
        self._indexed = _DIGITS.fullmatch(digits) is not None
        if self._indexed and 1 <= int(digits) <= len(self._arguments):
            self._argument = int(digits) - 1
        else:
            self._good = False

    def _extra(self) -> None:
        self._printer.put("%!(EXTRA ")
        for place, argument in enumerate(self._arguments[self._argument :]):
            if place:
                self._printer.put(", ")
            if sort(argument) is Sort.NIL:
                self._printer.put("<nil>")
            else:
                self._printer.put(f"{sort(argument).value}=")
                self._printer.value(argument)
        self._printer.put(")")
