"""A controller that does not mind what shards say, to begin with."""

from nstance.v1 import operator_pb2 as pb


class NullListener:
    """Answers everything of `ports.Listener` with silence; controllers override what they want to hear."""

    synced = True

    def shard_changed(self, shard: str) -> None: ...

    def group_changed(self, shard: str, group: str) -> None: ...

    def instance_changed(self, shard: str, event: pb.InstanceEvent) -> None: ...

    def trouble_heard(self, shard: str, event: pb.Event) -> None: ...
