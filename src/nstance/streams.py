"""Standard streams of a program, also if its parent closed one.

The trap: the lowest free descriptor goes to the next file that is opened. A socket that gets the number of a standard
stream ends the process when it is closed, because the event loop takes that for a mistake.
"""

import os
import sys

_HIGHEST_STANDARD = 2


def reopen() -> None:
    """Connect closed standard streams to the null device. Call it before anything is opened."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _HIGHEST_STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
