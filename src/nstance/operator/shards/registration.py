"""Asking shards for the operator's first certificate.

All shards share one CA, so any of them will do. They are asked at once, because one that is silent would hold up the
others; the same nonce with the same key gets the same certificate from each, so it does not matter who is first.
"""

import asyncio
import logging
import ssl

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.clock import Clock, Rng
from nstance.operator.config_file import Configuration
from nstance.operator.shards import link
from nstance.v1 import registration_grpc
from nstance.v1.registration_pb2 import RegisterOperatorRequest, RegisterResponse
from nstance.wire import channel, status, tls
from nstance.wire.call import call

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
PATIENCE_SECONDS = 20.0  # shards that did not answer are asked again: a fail-over takes a few seconds

_REFUSALS = frozenset({Status.UNAUTHENTICATED, Status.PERMISSION_DENIED, Status.INVALID_ARGUMENT})


class NonceRejectedError(Exception):
    """A shard refused for good."""


class UntrustedShardsError(Exception):
    """Every shard has a certificate of another CA."""


class NoShardAnsweredError(Exception):
    """No shard answered in time."""


async def register(
    request: RegisterOperatorRequest,
    configuration: Configuration,
    *,
    ca_pem: str,
    clock: Clock,
    rng: Rng,
) -> RegisterResponse:
    """Raises NonceRefused, CaRefused, NobodyAnswers; each says what the shards said."""
    context = tls.client_context(ca_pem=ca_pem)
    end = clock.monotonic() + PATIENCE_SECONDS
    tries = 0
    while True:
        answer, problems = await _ask_all(request, configuration, context, clock)
        if answer is not None:
            return answer
        refusals = [problem for problem in problems if isinstance(problem, GRPCError)]
        told = "; ".join(dict.fromkeys(status.explain(problem) for problem in refusals or problems))
        if refusals:
            raise NonceRejectedError(told)
        if all(isinstance(problem, channel.UntrustedError) for problem in problems):
            raise UntrustedShardsError(told)
        if clock.monotonic() >= end:
            # One that answers with another CA says more than those that do not answer at all.
            untrusted = any(isinstance(problem, channel.UntrustedError) for problem in problems)
            raise UntrustedShardsError(told) if untrusted else NoShardAnsweredError(told)
        log.warning("no shard could be reached to register, trying again", extra={"reason": told})
        tries += 1
        await clock.sleep(link.RETRY.delay(1 + tries, rng))


async def _ask_all(
    request: RegisterOperatorRequest, configuration: Configuration, context: ssl.SSLContext, clock: Clock
) -> tuple[RegisterResponse | None, list[Exception]]:
    """The first answer, or everybody's reason."""
    tasks = [
        asyncio.create_task(
            _ask(
                request,
                channel.Channel(
                    address, context=context, expect_cluster=configuration.cluster, expect_shard=shard, clock=clock
                ),
                address,
            )
        )
        for shard, endpoints in configuration.shards.items()
        for address in endpoints.registration
    ]
    problems: list[Exception] = []
    try:
        for done in asyncio.as_completed(tasks):
            found = await done
            if isinstance(found, RegisterResponse):
                return found, []
            problems.append(found)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return None, problems


async def _ask(request: RegisterOperatorRequest, opened: channel.Channel, address: str) -> RegisterResponse | Exception:
    try:
        stub = registration_grpc.RegistrationServiceStub(opened)
        answer: RegisterResponse = await call(stub.RegisterOperator, request, timeout=CALL_SECONDS)
        return answer
    except GRPCError as problem:
        return problem if problem.status in _REFUSALS else _unreachable(address, problem)
    except channel.UntrustedError as problem:
        return problem
    except OSError as problem:
        return _unreachable(address, problem)
    finally:
        opened.close()


def _unreachable(address: str, problem: Exception) -> Exception:
    text = status.explain(problem)
    return status.UnreachableError(text if address in text else f"{address}: {text}")
