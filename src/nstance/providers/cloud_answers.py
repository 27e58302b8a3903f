"""What the answers of all clouds have in common: errors of the port, owners, and what has no capacity."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from nstance.clouds.errors import NoAnswerError, NotSentError
from nstance.model.ids import InstanceId
from nstance.providers import errors
from nstance.providers.port import CreateRequest, Scope

E = TypeVar("E", bound=Exception)


@contextlib.contextmanager
def translated(refused: type[E], to_error: Callable[[E], errors.ProviderError], *, changes: bool) -> Iterator[None]:
    """`refused`: the cloud's own errors. `changes`: a call without a reply may have changed something."""
    try:
        yield
    except NotSentError as problem:  # also CredentialsError
        raise errors.OutOfReachError(str(problem)) from problem
    except NoAnswerError as problem:
        kind = errors.UnknownOutcomeError if changes else errors.UnavailableError
        raise kind(str(problem)) from problem
    except refused as problem:
        raise to_error(problem) from problem


def check_owner(scope: Scope, id: InstanceId, cluster: str | None, shard: str | None) -> None:
    """Raises PermanentError for the tags of another cluster or shard. Missing tags prove nothing."""
    if cluster not in (None, scope.cluster) or shard not in (None, scope.shard):
        raise errors.PermanentError(f"{id} belongs to shard {shard} of cluster {cluster}")


def exhausted(scope: errors.CapacityScope, request: CreateRequest) -> str:
    """What of an offer has no capacity."""
    match scope:
        case errors.CapacityScope.SUBNET:
            return request.subnet
        case errors.CapacityScope.MARKET:
            return request.market or "on-demand"
        case errors.CapacityScope.INSTANCE_TYPE | errors.CapacityScope.QUOTA:
            return request.instance_type
        case errors.CapacityScope.TYPE_QUOTA:
            return " ".join(filter(None, (request.market, request.instance_type)))
        case _:
            return " ".join(filter(None, (request.market, request.instance_type, request.subnet)))
