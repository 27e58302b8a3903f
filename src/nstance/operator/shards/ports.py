"""The port between the operator's controllers and the shards.

A shard keeps the last state that it received in memory, also while the connection is down, so controllers never wait for
the network to read it. The trap: that state is complete only while `synced`. Only then does a missing group or instance
prove its absence.
"""

from collections.abc import Mapping
from typing import Protocol

from nstance.v1 import operator_pb2 as pb


class ShardUnreachableError(Exception):
    """No answer, or a server that does not lead. Retry; nothing can be concluded."""


class ShardRefusedError(Exception):
    """The shard rejected the call. `code` is the gRPC status name (NOT_FOUND, INVALID_ARGUMENT, ABORTED …)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Shard(Protocol):
    """Calls have deadlines and raise ShardUnreachableError or ShardRefusedError, nothing else."""

    @property
    def name(self) -> str: ...

    @property
    def synced(self) -> bool:
        """A complete snapshot was read on the connection that is open now."""
        ...

    @property
    def unsynced_reason(self) -> str:
        """Why it is not synced, for people; empty when it is."""
        ...

    @property
    def groups(self) -> Mapping[str, pb.GroupStatus]:
        """By key, as last received."""
        ...

    @property
    def instances(self) -> Mapping[str, pb.InstanceEvent]:
        """By instance ID, as last received; deleted ones are absent."""
        ...

    async def upsert_group(self, request: pb.UpsertGroupRequest) -> pb.GroupStatus: ...

    async def delete_group(self, key: str) -> None: ...

    async def create_instance(self, request: pb.CreateInstanceRequest) -> pb.InstanceStatus: ...

    async def delete_instance(self, instance: str) -> pb.InstanceStatus: ...

    async def replace_instance(self, instance: str) -> pb.InstanceStatus: ...

    async def get_instance(self, instance: str) -> pb.InstanceStatus: ...

    async def find_requested(self, chosen: str) -> pb.InstanceStatus:
        """What `create_instance` has created with the UUID `chosen`. NOT_FOUND is final once that call has ended."""
        ...

    async def acknowledge_drained(self, instance: str) -> pb.AcknowledgeDrainedResponse: ...


class Shards(Protocol):
    """The configured shards, in the order of the configuration file."""

    def names(self) -> tuple[str, ...]: ...

    def get(self, name: str) -> Shard | None:
        """None: not in the configuration, or not any more."""
        ...


class Listener:
    """Receives changes in the event loop, after the shard's own state changed; ignores those that it does not override.
    Must return at once."""

    def on_shard_change(self, shard: str) -> None:
        """It was connected, synced, lost, added or removed."""

    def on_group_change(self, shard: str, group: str) -> None: ...

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None: ...

    def on_error_event(self, shard: str, event: pb.Event) -> None: ...
