"""The three standard streams of a program, also where whoever started it closed one.

The trap: the lowest free number goes to whatever is opened next. A socket that gets the number of a standard stream ends
the process when it is closed, because the event loop takes that for a mistake.
"""

import os
import sys

_HIGHEST = 2


def reopen() -> None:
    """Whichever of them is closed leads nowhere from now on. To be called before anything is opened."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _HIGHEST:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
