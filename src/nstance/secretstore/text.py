"""Values as text in the stores of clouds, because some take nothing else and people read them in the console.

Text is stored as it is. What is no text, or empty (AWS takes no empty values), is stored as base64 behind a marker.
"""

import base64
import binascii

from nstance.secretstore import errors

MARKER = "nstance-base64:"


def to_text(value: bytes) -> str:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text and not text.startswith(MARKER) and all(c.isprintable() or c in "\t\n\r" for c in text):
        return text
    return MARKER + base64.b64encode(value).decode("ascii")


def from_text(text: str, about: str) -> bytes:
    """Raises DecryptionError."""
    if not text.startswith(MARKER):
        return text.encode("utf-8")
    try:
        return base64.b64decode(text.removeprefix(MARKER), validate=True)
    except binascii.Error as problem:
        raise errors.DecryptionError(
            f"{about} starts with {MARKER} and is not base64: {problem}; store it again"
        ) from problem
