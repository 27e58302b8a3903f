"""Errors for people: one line that says what was expected, what was found and what to do next.

Commands import it only when something failed, so that help stays fast.
"""

import logging
import traceback
from collections.abc import Iterable
from typing import IO, Any

import click

from nstance.telemetry import logs

log = logging.getLogger(__name__)


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """To be added to a message; empty if nothing is near."""
    import difflib

    near = difflib.get_close_matches(text, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


class CommandError(Exception):
    """A command failed; the message is for the person who ran it."""


class ExitError(click.ClickException):
    """Ends a command with exit code 1; with --debug it prints the traceback of `cause`."""

    def __init__(self, message: str, cause: BaseException | None) -> None:
        super().__init__(message)
        self._cause = cause

    def show(self, file: IO[Any] | None = None) -> None:
        if self._cause is not None:
            click.echo("".join(traceback.format_exception(self._cause)), file=file, err=True, nl=False)
        if logs.is_json():
            log.error("failed to run", extra={"error": self.message})
        else:
            click.echo(f"nstance-admin: {self.message}", file=file, err=True)


def explain(problem: Exception) -> str:
    from nstance.authority import errors as authority
    from nstance.config import errors as config
    from nstance.objects import errors as storage
    from nstance.objects import lease, slots
    from nstance.pki import fields, keys, names, nonce
    from nstance.secretstore import errors as secrets

    match problem:
        case config.ConfigError():
            count = len(problem.problems)
            return f"the configuration has {count} problem{'s' if count != 1 else ''}:\n{problem}"
        case storage.StorageError() | secrets.SecretError():
            return _with_hint(problem)
        case nonce.InvalidNonceError():
            return f"cannot create a valid nonce: {problem.reason}"
        case (
            CommandError()
            | authority.AuthorityError()
            | slots.DamagedError()
            | lease.BadLeaseError()
            | keys.UnacceptableKeyError()
            | fields.CertificateError()
            | names.IdentityError()
        ):
            return str(problem)
        case TimeoutError():
            return "no answer in time; try again"
        case OSError():
            file = f"{problem.filename}: " if problem.filename else ""
            return f"{file}{problem.strerror or problem}"
        case _:
            return f"unexpected {type(problem).__name__}: {problem}; run it again with --debug and report the bug"


def _with_hint(problem: Exception) -> str:
    from nstance.objects import errors as storage

    text = str(problem)
    if ";" in text and ": 403 " not in text:  # it already says what to do; the text of an S3 server does not count
        return text
    match problem if isinstance(problem, storage.StorageError) else problem.__cause__:
        case storage.UnavailableError() if " S3 " in text:
            return f"{text}; check that the store is reachable and AWS_ENDPOINT_URL is right"
        case storage.PermissionDeniedError() if " S3 " in text:
            return (
                f"{text}; check the bucket's name, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and permissions"
            )
        case storage.UnavailableError():
            return f"{text}; try again"
        case storage.ConflictError():
            return f"{text}; check the current state, then try again"
        case storage.UnknownOutcomeError():
            return f"{text}; the change may have been applied: check before you try again"
        case _:
            return text
