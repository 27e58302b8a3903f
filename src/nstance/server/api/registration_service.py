"""RegistrationService: the gRPC face of the registrar."""

from typing import Any

from nstance.server.api.registrar import Registrar
from nstance.v1 import registration_grpc
from nstance.wire.peer import connection_of


class RegistrationService(registration_grpc.RegistrationServiceBase):
    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar

    async def RegisterAgent(self, stream: Any) -> None:
        request = await stream.recv_message()
        await stream.send_message(await self._registrar.register_agent(request, connection_of(stream).address))

    async def RegisterOperator(self, stream: Any) -> None:
        request = await stream.recv_message()
        await stream.send_message(await self._registrar.register_operator(request, connection_of(stream).address))
