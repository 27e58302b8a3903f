"""Loads a certificate and its key from memory into a TLS context, which itself takes only paths."""

import contextlib
import os
import ssl
from collections.abc import Iterator


def load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Both in PEM. Raises ssl.SSLError or ValueError if they do not load or do not fit each other."""
    with _private_file(certificate + b"\n" + key) as path:
        context.load_cert_chain(path, password=_no_password)


def _no_password() -> bytes:
    """Without this, OpenSSL would ask for the password of an encrypted key on the terminal, and wait."""
    raise ValueError("the private key is encrypted; expected a plain PEM key")


@contextlib.contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """A path with this content. Where possible it is never on a disk."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with open(os.memfd_create("tls", os.MFD_CLOEXEC), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    import tempfile  # late: it and what it imports are a part of an agent's memory

    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.write(content)
        file.flush()
        yield file.name
