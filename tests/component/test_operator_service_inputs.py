"""Whatever an operator sends is answered or refused; nothing is a bug of the server (invariant 9)."""

import random
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from component.whole_server import Operator, World, config, new_uuid, states
from nstance.v1 import operator_pb2
from support.eventually import eventually

ROUNDS = 300
NUMBERS = {
    FieldDescriptor.TYPE_INT32: (0, 1, 2, -1, 5, 2**31 - 1, -(2**31)),
    FieldDescriptor.TYPE_INT64: (0, 1, -1, 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**63, 2**64 - 1),
    FieldDescriptor.TYPE_BOOL: (False, True),
}
TEXTS = (
    *("", "web", "static", "main", "small", "..", "../acme/web", "*", "a" * 33, "ä", "\0", "{", "{}", '{"A": 1}'),
    *("[" * 2000, '{"a": NaN}', "1s", "-1s", "9" * 400, "{{ .Vars.x }}", "null", "'; DROP TABLE events; --", "\u202e"),
)


def fill(message: Message, rng: random.Random, known: tuple[str, ...]) -> Any:
    """Some fields, with values that hurt."""

    def text() -> str:
        return rng.choice(TEXTS + known * 4)

    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.4:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value.update({text(): text() for _ in range(2)})
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            fill(value, rng, known)
        elif field.type == FieldDescriptor.TYPE_STRING:
            value.extend([text()]) if field.is_repeated else setattr(message, field.name, text())
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, rng.randbytes(rng.choice((0, 1, 64))))
        else:
            setattr(message, field.name, rng.choice(NUMBERS[field.type]))
    return message


async def answered(operator: Operator, rpc: str, request: Any) -> Status:
    try:
        await operator.call(rpc, request)
    except GRPCError as refused:
        return refused.status
    return Status.OK


@pytest.mark.parametrize("seed", range(3))
async def test_no_request_is_a_bug(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    groups = {"acme": {"static": {"template": "web", "size": 2}}, "globex": {"web": {"template": "web", "size": 1}}}
    async with World(tmp_path, config(groups=groups), agents=False) as world:
        server = await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: len(states(world, "static", "acme")) == 2)
        other = dict(states(world, "web", "globex"))
        known = (*states(world, "static", "acme"), *other, new_uuid(), new_uuid())
        service = operator_pb2.DESCRIPTOR.services_by_name["OperatorService"]
        seen = set()
        for _ in range(ROUNDS):
            method = rng.choice([m for m in service.methods if m.name not in ("Watch", "RevokeOperator")])
            request = fill(getattr(operator.stub, method.name).request_type(), rng, known)
            if getattr(getattr(request, "config", None), "size", 0) > 5:
                request.config.size = 5  # a thousand VMs are not the point
            outcome = await answered(operator, method.name, request)
            assert outcome not in (Status.INTERNAL, Status.UNKNOWN), (method.name, request)
            seen.add(outcome)
        assert {Status.OK, Status.NOT_FOUND, Status.INVALID_ARGUMENT} <= seen
        assert server.lead is not None
        assert states(world, "web", "globex") == {**other, **states(world, "web", "globex")}
        assert len(states(world, "web", "globex")) == len(other)
