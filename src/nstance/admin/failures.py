"""Errors as a person reads them: one line that says what was expected, what was found and what to do.

Imported only when something went wrong, or by the work itself.
"""

import traceback
from typing import IO, Any

import click


class Refused(Exception):
    """A command will not, or could not, do what it was asked; the message is for the person who asked."""


class Failure(click.ClickException):
    """What ends a command with exit code 1."""

    def __init__(self, message: str, shown: BaseException | None) -> None:
        super().__init__(message)
        self._shown = shown

    def show(self, file: IO[Any] | None = None) -> None:
        if self._shown is not None:
            click.echo("".join(traceback.format_exception(self._shown)), file=file, err=True, nl=False)
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
            return f"no valid nonce can be made: {problem.reason}"
        case (
            Refused()
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
            what = f"{problem.filename}: " if problem.filename else ""
            return f"{what}{problem.strerror or problem}"
        case _:
            return f"unexpected {type(problem).__name__}: {problem}; run it again with --debug and report it"


def _with_hint(problem: Exception) -> str:
    from nstance.objects import errors as storage

    text = str(problem)
    if ";" in text and ": 403 " not in text:  # it already says what to do; a foreign store's words do not count
        return text
    said = problem if isinstance(problem, storage.StorageError) else problem.__cause__
    match said:
        case storage.UnavailableError() if " S3 " in text:
            return f"{text}; is the store reachable, and AWS_ENDPOINT_URL right?"
        case storage.PermissionDeniedError() if " S3 " in text:
            return (
                f"{text}; check the bucket's name, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and permissions"
            )
        case storage.UnavailableError():
            return f"{text}; try again"
        case storage.ConflictError():
            return f"{text}; look at what is there now, then try again"
        case storage.UnknownOutcomeError():
            return f"{text}; it may have been done: look before you try again"
        case _:
            return text
