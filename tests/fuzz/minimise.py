"""The smallest part of an input that still breaks the law in the same way."""

from fuzz import law

STEPS = 3000  # inputs that are tried


def smallest(target: law.Target, data: bytes) -> bytes:
    wanted = breach(target, data)
    if wanted is None:
        return data
    steps, size = STEPS, max(1, len(data) // 2)
    while True:
        at = shorter = 0
        while at < len(data) and steps > 0:
            steps -= 1
            tried = data[:at] + data[at + size :]
            if breach(target, tried) == wanted:
                data, shorter = tried, shorter + 1
            else:
                at += size
        if steps <= 0 or (size == 1 and not shorter):
            return data
        size = max(1, size // 2)


def breach(target: law.Target, data: bytes) -> str | None:
    """What kind of breach it is."""
    try:
        law.judge(target, data)
    except law.Broken as broken:
        cause = broken.__cause__
        return type(cause).__name__ if cause is not None else "growth"
    return None
