"""Requesting the operator's first certificate from the shards.

All shards share one CA, so any of them can issue it. They are asked in parallel, because one that hangs would hold up the
others. The same nonce with the same key gets the same certificate from each, so it does not matter which one is first.
"""

import asyncio
import logging
import ssl

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.clock import Clock, Rng
from nstance.operator.config_file import Configuration
from nstance.operator.options import Waits
from nstance.tasks import background
from nstance.v1 import registration_grpc
from nstance.v1.registration_pb2 import RegisterOperatorRequest, RegisterResponse
from nstance.wire import channel, status, tls
from nstance.wire.call import call

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0

_REJECTIONS = frozenset({Status.UNAUTHENTICATED, Status.PERMISSION_DENIED, Status.INVALID_ARGUMENT})


class NonceRejectedError(Exception):
    """A shard rejected the nonce for good."""


class UntrustedShardsError(Exception):
    """The shards' certificates are of another CA."""


class NoShardAnsweredError(Exception):
    """No shard answered in time."""


async def register(
    request: RegisterOperatorRequest,
    configuration: Configuration,
    *,
    ca_pem: str,
    clock: Clock,
    rng: Rng,
    waits: Waits,
) -> RegisterResponse:
    """Raises NonceRejectedError, UntrustedShardsError or NoShardAnsweredError, each with the shards' own reasons."""
    context = tls.client_context(ca_pem=ca_pem)
    deadline = clock.monotonic() + waits.registration
    attempts = 0
    while True:
        answer, problems = await _ask_all(request, configuration, context, clock)
        if answer is not None:
            return answer
        rejections = [problem for problem in problems if isinstance(problem, GRPCError)]
        reasons = "; ".join(dict.fromkeys(status.explain(problem) for problem in rejections or problems))
        if rejections:
            raise NonceRejectedError(reasons)
        untrusted = [isinstance(problem, channel.UntrustedError) for problem in problems]
        if all(untrusted):
            raise UntrustedShardsError(reasons)
        if clock.monotonic() >= deadline:
            # A shard with another CA explains more than shards that do not answer at all.
            raise UntrustedShardsError(reasons) if any(untrusted) else NoShardAnsweredError(reasons)
        log.warning("failed to register operator: no shard answered, retrying", extra={"reason": reasons})
        attempts += 1
        await clock.sleep(waits.link_retry.delay(1 + attempts, rng))


async def _ask_all(
    request: RegisterOperatorRequest, configuration: Configuration, context: ssl.SSLContext, clock: Clock
) -> tuple[RegisterResponse | None, list[Exception]]:
    """The first answer, or the reason of every shard."""
    cluster = configuration.cluster
    calls = [
        _ask(
            request,
            channel.Channel(address, context=context, expect=channel.ExpectedServer(cluster, shard), clock=clock),
            address,
        )
        for shard, endpoints in configuration.shards.items()
        for address in endpoints.registration
    ]
    problems: list[Exception] = []
    async with background.running(calls) as tasks:
        for done in asyncio.as_completed(tasks):
            answer = await done
            if isinstance(answer, RegisterResponse):
                return answer, []
            problems.append(answer)
    return None, problems


async def _ask(request: RegisterOperatorRequest, opened: channel.Channel, address: str) -> RegisterResponse | Exception:
    try:
        stub = registration_grpc.RegistrationServiceStub(opened)
        answer: RegisterResponse = await call(stub.RegisterOperator, request, timeout=CALL_SECONDS)
        return answer
    except GRPCError as problem:
        return problem if problem.status in _REJECTIONS else _unreachable(address, problem)
    except channel.UntrustedError as problem:
        return problem
    except OSError as problem:
        return _unreachable(address, problem)
    finally:
        opened.close()


def _unreachable(address: str, problem: Exception) -> Exception:
    text = status.explain(problem)
    return status.UnreachableError(text if address in text else f"{address}: {text}")
