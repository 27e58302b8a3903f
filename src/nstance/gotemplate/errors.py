"""Errors of templates, with their place."""


class TemplateError(Exception):
    """A template that cannot be parsed or rendered. Line and column count from 1, the column in characters.

    The message may quote the template, never the data: variables can hold secrets.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message, line, column)
        self.message = message
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


class UnlocatedError(Exception):
    """An error without its place. The interpreter adds the place and raises TemplateError."""
