"""What the operator's controllers ask of a shard.

A link remembers what its shard last said, also while the shard is silent: controllers read from it and never wait for a
network. The trap: what a link remembers is the truth only while `synced`; an absence counts as an absence only then.
"""

from collections.abc import Mapping
from typing import Protocol

from nstance.v1 import operator_pb2 as pb


class ShardUnreachableError(Exception):
    """No answer, or a server that does not lead. Retry; nothing can be concluded."""


class ShardRefusedError(Exception):
    """The shard answered no. `code` is the gRPC status name (NOT_FOUND, INVALID_ARGUMENT, FAILED_PRECONDITION, ABORTED …)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Shard(Protocol):
    """Calls have deadlines and raise ShardUnreachable or ShardRefused, nothing else."""

    @property
    def name(self) -> str: ...

    @property
    def synced(self) -> bool:
        """A whole snapshot was read on the connection that is open now."""
        ...

    @property
    def trouble(self) -> str:
        """Why it is not synced, for people; empty when it is."""
        ...

    @property
    def groups(self) -> Mapping[str, pb.GroupStatus]:
        """By key, as last heard."""
        ...

    @property
    def instances(self) -> Mapping[str, pb.InstanceEvent]:
        """By instance ID, as last heard; deleted ones are absent."""
        ...

    async def upsert_group(self, key: str, config: pb.GroupConfig, *, etag: str = "") -> pb.GroupStatus: ...

    async def delete_group(self, key: str, *, etag: str = "") -> None: ...

    async def create_instance(self, request: pb.CreateInstanceRequest) -> pb.InstanceStatus: ...

    async def delete_instance(self, instance: str) -> pb.InstanceStatus: ...

    async def instance(self, instance: str) -> pb.InstanceStatus: ...

    async def acknowledge_drained(self, instance: str) -> pb.AcknowledgeDrainedResponse: ...


class Shards(Protocol):
    """The shards of the configuration as it is now; iteration order is the configuration's."""

    def names(self) -> tuple[str, ...]: ...

    def get(self, name: str) -> Shard | None:
        """None: not in the configuration (any more)."""
        ...


class Listener(Protocol):
    """Told of what changed, in the event loop, right after the link's own memory changed. Must return at once."""

    def shard_changed(self, shard: str) -> None:
        """It was connected, synced, lost, added or removed."""
        ...

    def group_changed(self, shard: str, group: str) -> None: ...

    def instance_changed(self, shard: str, event: pb.InstanceEvent) -> None: ...

    def trouble_heard(self, shard: str, event: pb.Event) -> None: ...
