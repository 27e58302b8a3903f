"""A unary call with a timeout.

An error status comes back as its GRPCError; everything that means "no answer" as one `UnreachableError`. The trap: no
answer does not mean that nothing was done.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from grpclib.client import UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.wire.status import UnreachableError

# Metadata of a call: the person that asked an operator for it; the role of that person, which can only lower the
# operator's own; and the tenant to act in, which only the role admin may choose.
PERSON_HEADER = "nstance-person"
ROLE_HEADER = "nstance-role"
TENANT_HEADER = "nstance-tenant"
# What an operator may say about a person. Other names are left out of the history.
PERSON = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+:/-]{0,95}")

Request = TypeVar("Request")
Reply = TypeVar("Reply")


async def call(
    method: "UnaryUnaryMethod[Request, Reply]",
    request: Request,
    *,
    timeout: float,
    metadata: Mapping[str, str] | None = None,
) -> Reply:
    try:
        async with method.open(timeout=timeout, metadata=metadata) as stream:
            await stream.send_message(request, end=True)
            reply: Any = await stream.recv_message()
    except TimeoutError as error:
        raise UnreachableError(f"no answer within {timeout:g} s") from error
    except UnreachableError:
        raise
    except (OSError, StreamTerminatedError, ProtocolError) as error:
        raise UnreachableError(str(error) or type(error).__name__) from error
    except GRPCError as error:
        if error.status is Status.DEADLINE_EXCEEDED:
            raise UnreachableError(f"no answer within {timeout:g} s") from error
        raise
    if reply is None:
        raise GRPCError(Status.INTERNAL, "the server ended the call without an answer")
    return reply  # type: ignore[no-any-return]
