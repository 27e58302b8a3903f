"""Renders a parsed template within limits.

One object per rendering; templates are never changed. `at` is the offset of the current node, so that every error gets its
place. The trap is Go's two kinds of nil: a field of nil in the data is an error, while a field of nil from a pipeline, or
of a missing key, is nil again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from nstance.gotemplate import functions, lexer, nodes, parser
from nstance.gotemplate.errors import UnlocatedError
from nstance.gotemplate.limits import Budget, Limits
from nstance.gotemplate.printf import Printer
from nstance.gotemplate.values import NOTHING, Absent, Value, ValueType, get_field, is_true, sorted_items, type_of

_NO_VALUE = "<no value>"


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


def render(
    parsed: parser.Parsed,
    data: Mapping[str, object],
    *,
    source: lexer.Source,
    limits: Limits,
    missing: Callable[[str], None] | None,
) -> str:
    run = _Run(parsed.slots, data, Budget(limits), missing)
    try:
        run.body(parsed.body, data)
    except UnlocatedError as error:
        raise source.error(str(error), run.at) from None
    return "".join(run.pieces)


class _Run:
    def __init__(self, slots: int, data: Value, budget: Budget, missing: Callable[[str], None] | None) -> None:
        self.at = 0
        self.pieces: list[str] = []
        self._budget = budget
        self._variables: list[Value] = [data, *[NOTHING] * (slots - 1)]
        reported: set[str] = set()

        def report(name: str) -> None:
            if name not in reported:
                reported.add(name)
                if missing is not None:
                    missing(name)

        self._report = report  # not a method: the reference cycle would keep the output until a garbage collection
        self._context = functions.Context(budget, report)

    def body(self, body: nodes.Body, dot: Value) -> None:
        for node in body:
            self.at = node.at
            self._budget.spend_steps()
            match node:
                case nodes.Text(text=text):
                    self._emit(text)
                case nodes.Action(pipe=pipe):
                    value = self._pipe(pipe, dot)
                    if not pipe.slots:
                        self.at = node.at
                        self._print(value)
                case nodes.Branch():
                    self._branch(node, dot)
                case nodes.Range():
                    self._range(node, dot)
                case nodes.Break():
                    raise _Break
                case nodes.Continue():
                    raise _Continue

    def _emit(self, text: str) -> None:
        try:
            self._budget.spend_output(len(text) if text.isascii() else len(text.encode()))
        except UnicodeEncodeError:
            raise UnlocatedError("output that is not valid Unicode; expected text") from None
        self.pieces.append(text)

    def _print(self, value: Value) -> None:
        if value is NOTHING:
            self._emit(_NO_VALUE)
        elif isinstance(value, str):
            self._emit(value)
        else:
            self._emit(Printer(self._budget, self._report).value(value).text())

    def _branch(self, node: nodes.Branch, dot: Value) -> None:
        for arm in node.arms:
            value = self._pipe(arm.pipe, dot)
            if is_true(value):
                self.body(arm.body, value if node.moves_dot else dot)
                return
        self.body(node.otherwise, dot)

    def _range(self, node: nodes.Range, dot: Value) -> None:
        value = self._pipe(node.pipe, dot)
        self.at = node.pipe.at
        slots, has_elements = node.pipe.slots, False
        for key, element in self._elements(value, len(slots)):
            has_elements = True
            self._budget.spend_steps()
            # No variable, one for the element, or two.
            for slot, part in zip(slots, (key, element)[2 - len(slots) :], strict=True):
                self._variables[slot] = part
            try:
                self.body(node.body, element)
            except _Continue:
                continue
            except _Break:
                return
        if not has_elements:
            self.body(node.otherwise, dot)

    def _elements(self, value: Value, variables: int) -> Iterable[tuple[Value, Value]]:
        match type_of(value):
            case ValueType.LIST:
                return enumerate(value)
            case ValueType.MAP:
                self._budget.spend_steps(len(value))
                return sorted_items(value)
            case ValueType.INT if variables < 2:
                return ((NOTHING, number) for number in range(value))
            case ValueType.INT:
                raise UnlocatedError("range over a number with two variables; expected one")
            case ValueType.NIL:
                return ()
            case other:
                raise UnlocatedError(f"range over a value of type {other.value}; expected a list, map or number")

    def _pipe(self, pipe: nodes.Pipe, dot: Value) -> Value:
        value: Value = None
        piped = False
        for command in pipe.commands:
            value = self._command(command, dot, [value] if piped else [])
            piped = True
            if value is None:
                value = NOTHING
        for slot in pipe.slots:
            self._variables[slot] = value
        return value

    def _command(self, command: nodes.Command, dot: Value, final: list[Value]) -> Value:
        first = command.words[0]
        if isinstance(first, nodes.Function):
            return self._call(first, command.words[1:], dot, final)
        if len(command.words) > 1 or final:
            self.at = first.at
            raise UnlocatedError("arguments for a value that is not a function")
        if isinstance(first, nodes.Nil):
            self.at = first.at
            raise UnlocatedError("nil is not a command")
        return self._operand(first, dot)

    def _operand(self, node: nodes.Operand, dot: Value) -> Value:
        self.at = node.at
        self._budget.spend_steps()
        match node:
            case nodes.Literal(value=value):
                return value
            case nodes.Field(path=path):
                return self._fields(dot, path, "")
            case nodes.Variable(slot=slot, path=path, name=name):
                return self._fields(self._variables[slot], path, "" if name == "$" else name)
            case nodes.Dot():
                return dot
            case nodes.Nil():
                return None
            case nodes.Function():
                return self._call(node, (), dot, [])
            case nodes.Chain(base=base, path=path):
                value = self._operand(base, dot)
                self.at = node.at
                return self._fields(value, path, "(…)")
            case nodes.Pipe():
                return self._pipe(node, dot)

    def _fields(self, value: Value, path: Sequence[str], name: str) -> Value:
        for key in path:
            name = f"{name}.{key}"
            value = get_field(value, key, path=name)
        return value

    def _call(self, node: nodes.Function, words: Sequence[nodes.Operand], dot: Value, final: list[Value]) -> Value:
        count = len(words) + len(final)
        self.at = node.at
        if node.name in ("and", "or"):
            if not count:
                raise UnlocatedError(f"no arguments for {node.name}; expected at least 1")
            return self._choose(node.name == "or", words, dot, final)
        signature = functions.FUNCTIONS[node.name]
        minimum = len(signature.parameters)
        if count < minimum or (count > minimum and not signature.variadic):
            expected = f"at least {minimum}" if signature.variadic else f"{minimum}"
            raise UnlocatedError(f"{count} arguments for {node.name}; expected {expected}")
        arguments: list[Value] = []
        for number in range(count):
            value = self._operand(words[number], dot) if number < len(words) else final[0]
            parameter = signature.parameters[number] if number < minimum else None
            arguments.append(self._check_type(value, parameter))
        self.at = node.at
        context = self._context
        if node.name == "index" and words:
            context = functions.Context(self._budget, self._report, subject=_spelling(words[0]))
        result = signature.call(context, *arguments)
        if isinstance(result, str):
            self._budget.spend_characters(len(result))
        return result

    def _choose(self, wanted: bool, words: Sequence[nodes.Operand], dot: Value, final: list[Value]) -> Value:
        """`or` returns the first true argument, `and` the first false one; otherwise the last."""
        value: Value = None
        for word in words:
            value = self._operand(word, dot)
            if is_true(value) is wanted:
                return value
        return final[0] if final else value

    def _check_type(self, value: Value, parameter: ValueType | None) -> Value:
        found = type_of(value)
        if found is ValueType.TEXT:
            self._budget.spend_characters(len(value))
        if parameter is None or found is parameter:
            return value
        if parameter is ValueType.LIST and found is ValueType.NIL:
            return ()
        if parameter is ValueType.TEXT and isinstance(value, Absent) and value.name:
            self._report(value.name)
            return ""
        raise UnlocatedError(f"argument of type {found.value}; expected {parameter.value}")


def _spelling(node: nodes.Operand) -> str:
    match node:
        case nodes.Field(path=path):
            return "." + ".".join(path)
        case nodes.Variable(name=name, path=path):
            return ("" if name == "$" else name) + "".join(f".{key}" for key in path)
        case nodes.Dot():
            return ""
        case _:
            return "(…)"
