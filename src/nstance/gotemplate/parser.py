"""Parses tokens into nodes, by recursive descent.

It finds syntax errors, unknown functions and variables, and the used fields of the root data. The trap: `range` and `with`
change dot, so a field inside belongs to the root only if the path to it is known (`{{with .Instance}}{{.ID}}{{end}}` uses
Instance.ID).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from nstance.gotemplate import functions, lexer, literals, nodes
from nstance.gotemplate.errors import UnlocatedError
from nstance.gotemplate.lexer import Token, TokenKind

MAX_NESTING = 64  # of blocks and parentheses; far below Python's recursion limit

KEYWORDS = frozenset({"if", "else", "end", "range", "with", "break", "continue", "define", "template", "block"})


@dataclass(frozen=True, slots=True)
class FieldUse:
    """A field of the root data that the template uses."""

    path: tuple[str, ...]
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Parsed:
    body: nodes.Body
    slots: int  # variables needed at once, the root data `$` included
    uses: tuple[FieldUse, ...]


def parse(source: lexer.Source) -> Parsed:
    parser = _Parser(source)
    body, end = parser.body()
    if end.kind is not TokenKind.END:
        raise source.error(f"unexpected {{{{{end.text}}}}}; there is no block to end here", end.at)
    return Parsed(body, parser.slots, tuple(parser.uses))


class _Parser:
    def __init__(self, source: lexer.Source) -> None:
        self.source = source
        self.uses: list[FieldUse] = []
        self.slots = 1
        self._tokens: Iterator[Token] = lexer.tokens(source)
        self._ahead: deque[Token] = deque()
        self._declared = ["$"]  # by slot
        self._scope: dict[str, list[int]] = {"$": [0]}
        self._dot: tuple[str, ...] | None = ()  # the path from the root to dot, if known
        self._ranges = 0
        self._nesting = 0

    def _peek(self, distance: int = 0) -> Token:
        while len(self._ahead) <= distance:
            # The lexer yields the end once; after it there is only the end.
            self._ahead.append(next(self._tokens, None) or Token(TokenKind.END, "", len(self.source.text)))
        return self._ahead[distance]

    def _next(self) -> Token:
        self._peek()
        return self._ahead.popleft()

    def _unexpected(self, token: Token, where: str) -> NoReturn:
        found = f"'{token.text[:40]}'" if token.text else "end of template"
        raise self.source.error(f"unexpected {found} in {where}", token.at)

    def _close(self, where: str) -> None:
        token = self._next()
        if token.kind is not TokenKind.CLOSE:
            self._unexpected(token, where)

    def _enter(self, at: int) -> None:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise self.source.error(f"nested more than {MAX_NESTING} deep; expected less", at)

    def _declare(self, name: str) -> int:
        slot = len(self._declared)
        self._declared.append(name)
        self._scope.setdefault(name, []).append(slot)
        self.slots = max(self.slots, slot + 1)
        return slot

    def _leave_scope(self, mark: int) -> None:
        while len(self._declared) > mark:
            self._scope[self._declared.pop()].pop()

    def _slot(self, token: Token) -> int:
        found = self._scope.get(token.text)
        if not found:
            raise self.source.error(f"undefined variable '{token.text}'", token.at)
        return found[-1]

    def body(self) -> tuple[nodes.Body, Token]:
        """Nodes up to `end`, `else` or the end of the template, and the token that ended them."""
        found: list[nodes.Node] = []
        while True:
            token = self._next()
            if token.kind is TokenKind.TEXT:
                found.append(nodes.Text(token.at, token.text))
                continue
            if token.kind is TokenKind.END:
                return tuple(found), token
            word = self._peek()
            if word.kind is not TokenKind.WORD or word.text not in KEYWORDS:
                found.append(nodes.Action(word.at, self._pipe("an action", TokenKind.CLOSE)))
                continue
            self._next()
            if word.text in ("end", "else"):
                return tuple(found), word
            found.append(self._control(word))

    def _control(self, word: Token) -> nodes.Node:
        if word.text in ("define", "template", "block"):
            raise self.source.error(f"{{{{{word.text}}}}} is not supported; write its content in place", word.at)
        if word.text in ("break", "continue"):
            self._close(word.text)
            if not self._ranges:
                raise self.source.error(f"{{{{{word.text}}}}} outside of {{{{range}}}}", word.at)
            return nodes.Break(word.at) if word.text == "break" else nodes.Continue(word.at)
        self._enter(word.at)
        mark, dot = len(self._declared), self._dot
        node = self._range(word) if word.text == "range" else self._branch(word)
        self._leave_scope(mark)
        self._dot = dot
        self._nesting -= 1
        return node

    def _branch(self, word: Token) -> nodes.Branch:
        kind, dot, arms = word.text, self._dot, []
        while True:
            pipe = self._pipe(kind, TokenKind.CLOSE)
            self._dot = self._path(pipe) if kind == "with" else dot
            body, end = self._inner(word)
            arms.append(nodes.Arm(pipe, body))
            self._dot = dot
            if end.text == "else" and self._peek().kind is TokenKind.WORD and self._peek().text == kind:
                self._next()
                continue
            return nodes.Branch(word.at, kind == "with", tuple(arms), self._otherwise(word, end))

    def _range(self, word: Token) -> nodes.Range:
        dot = self._dot
        pipe = self._pipe("range", TokenKind.CLOSE)
        self._dot = None
        self._ranges += 1
        body, end = self._inner(word)
        self._ranges -= 1
        self._dot = dot
        return nodes.Range(word.at, pipe, body, self._otherwise(word, end))

    def _inner(self, word: Token) -> tuple[nodes.Body, Token]:
        mark = len(self._declared)
        body, end = self.body()
        if end.kind is TokenKind.END:
            raise self.source.error(f"{{{{{word.text}}}}} is not closed; expected {{{{end}}}}", word.at)
        self._leave_scope(mark)
        return body, end

    def _otherwise(self, word: Token, end: Token) -> nodes.Body:
        self._close(end.text)
        if end.text == "end":
            return ()
        body, last = self._inner(word)
        if last.text != "end":
            self._unexpected(last, f"{word.text}; expected {{{{end}}}}")
        self._close("end")
        return body

    def _path(self, pipe: nodes.Pipe) -> tuple[str, ...] | None:
        """The path of a pipe from the root, if it is only a field."""
        match pipe.commands:
            case (nodes.Command(words=(nodes.Field(path=path),)),):
                return None if self._dot is None else self._dot + path
            case (nodes.Command(words=(nodes.Variable(slot=0, path=path),)),):
                return path
            case _:
                return None

    def _pipe(self, where: str, end: TokenKind) -> nodes.Pipe:
        at = self._peek().at
        names: list[Token] = []
        declares = False
        while self._peek().kind is TokenKind.VARIABLE:
            after = self._peek(1)
            if after.kind in (TokenKind.DECLARE, TokenKind.ASSIGN):
                names.append(self._next())
                declares = self._next().kind is TokenKind.DECLARE
                break
            if after.text != ",":
                break
            names.append(self._next())
            if where != "range" or len(names) > 1:
                raise self.source.error(f"too many variables in {where}", self._next().at)
            self._next()
            if self._peek().kind is not TokenKind.VARIABLE or self._peek(1).kind not in (
                TokenKind.DECLARE,
                TokenKind.ASSIGN,
            ):
                self._unexpected(self._peek(), "range; expected a second variable and ':='")
        commands = self._commands(where, end)
        slots = tuple(self._declare(name.text) if declares else self._slot(name) for name in names)
        return nodes.Pipe(at, commands, slots, declares)

    def _commands(self, where: str, end: TokenKind) -> tuple[nodes.Command, ...]:
        commands: list[nodes.Command] = []
        while self._peek().kind is not end:
            command = self._command(where)
            if commands and isinstance(command.words[0], nodes.Literal | nodes.Nil | nodes.Dot):
                raise self.source.error("a value after '|'; expected a function", command.at)
            commands.append(command)
        if not commands:
            raise self.source.error(f"missing value for {where}", self._peek().at)
        self._next()
        return tuple(commands)

    def _command(self, where: str) -> nodes.Command:
        at = self._peek().at
        words: list[nodes.Operand] = []
        while (word := self._operand()) is not None:
            words.append(word)
            if not self._peek().spaced:
                break
        after = self._peek()
        if not words or after.kind not in (TokenKind.CLOSE, TokenKind.RIGHT, TokenKind.PIPE):
            self._unexpected(after, where)
        if after.kind is TokenKind.PIPE:
            self._next()
        return nodes.Command(at, tuple(words))

    def _operand(self) -> nodes.Operand | None:
        token = self._peek()
        term = self._term(token)
        if term is None:
            return None
        path: list[str] = []
        while self._peek().kind is TokenKind.FIELD and not self._peek().spaced:
            path.append(self._next().text[1:])
        match term:
            case nodes.Field():
                term = nodes.Field(term.at, (*term.path, *path))
                if self._dot is not None:
                    self._use((*self._dot, *term.path), token)
            case nodes.Variable():
                term = nodes.Variable(term.at, term.name, term.slot, tuple(path))
                if path and term.slot == 0:
                    self._use(tuple(path), token)
            case nodes.Pipe() | nodes.Function() if path:
                return nodes.Chain(token.at, term, tuple(path))
            case _ if path:
                raise self.source.error(f"unexpected '.{path[0]}' after '{token.text[:40]}'", token.at)
            case _:
                pass
        return term

    def _use(self, path: tuple[str, ...], token: Token) -> None:
        self.uses.append(FieldUse(path, *self.source.position(token.at)))

    def _term(self, token: Token) -> nodes.Operand | None:
        at, text = token.at, token.text
        match token.kind:
            case TokenKind.DOT:
                term: nodes.Operand = nodes.Dot(at)
            case TokenKind.FIELD:
                term = nodes.Field(at, (text[1:],))
            case TokenKind.VARIABLE:
                term = nodes.Variable(at, text, self._slot(token))
            case TokenKind.NUMBER | TokenKind.CHAR | TokenKind.STRING | TokenKind.RAW:
                term = self._literal(token)
            case TokenKind.WORD if text not in KEYWORDS:
                term = self._word(token)
            case TokenKind.LEFT:
                self._next()
                self._enter(at)
                term = self._pipe("parentheses", TokenKind.RIGHT)
                self._nesting -= 1
                return term
            case _:
                return None
        self._next()
        return term

    def _word(self, token: Token) -> nodes.Operand:
        if token.text in ("true", "false"):
            return nodes.Literal(token.at, token.text == "true")
        if token.text == "nil":
            return nodes.Nil(token.at)
        if token.text not in functions.NAMES:
            raise self.source.error(f"function '{token.text}' is not defined", token.at)
        return nodes.Function(token.at, token.text)

    def _literal(self, token: Token) -> nodes.Literal:
        try:
            match token.kind:
                case TokenKind.NUMBER:
                    return nodes.Literal(token.at, literals.parse_number(token.text))
                case TokenKind.CHAR:
                    return nodes.Literal(token.at, literals.parse_character(token.text))
                case _:
                    return nodes.Literal(token.at, literals.parse_string(token.text))
        except UnlocatedError as error:
            raise self.source.error(str(error), token.at) from None
