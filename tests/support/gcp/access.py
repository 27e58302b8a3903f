"""Who may do what: permissions of the caller in a project, and on service accounts."""

import base64
import hashlib
from dataclasses import dataclass, field

from support.gcp.stand_in import PROJECT, GoogleFault, Request, StandIn


@dataclass(slots=True)
class Access:
    stand_in: StandIn
    accounts: set[str] = field(default_factory=lambda: {"workers@proj-1.iam.gserviceaccount.com"})

    def install(self) -> None:
        self.stand_in.add(
            "cloudresourcemanager.v1", {"cloudresourcemanager.projects.testIamPermissions": self._in_project}
        )
        self.stand_in.add("iamcredentials.v1", {"iamcredentials.projects.serviceAccounts.signBlob": self._sign_blob})
        self.stand_in.add("iam.v1", {"iam.projects.serviceAccounts.testIamPermissions": self._on_account})

    async def _in_project(self, request: Request) -> object:
        if request.params["resource"] != PROJECT:
            raise GoogleFault(403, "forbidden", "The caller does not have permission")
        return self._allowed(request)

    async def _on_account(self, request: Request) -> object:
        if request.params["serviceAccountsId"] not in self.accounts:
            raise GoogleFault(404, "notFound", "Unknown service account")
        return self._allowed(request)

    async def _sign_blob(self, request: Request) -> object:
        """The stand-in's signature of anything is its hash."""
        self.stand_in.check("iam.serviceAccounts.signBlob")
        digest = hashlib.sha256(base64.b64decode(request.body["payload"])).digest()
        return {"keyId": "k1", "signedBlob": base64.b64encode(digest).decode()}

    def _allowed(self, request: Request) -> dict[str, list[str]]:
        return {"permissions": [each for each in request.body["permissions"] if each not in self.stand_in.denied]}
