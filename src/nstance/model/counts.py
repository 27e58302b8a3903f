"""Numbers of things in words."""


def count(number: int, noun: str) -> str:
    """`1 instance`, `2 instances`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
