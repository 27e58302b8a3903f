"""Where Google's services answer: at their public addresses, or where the usual variables say."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Service:
    """One of Google's services. `path`: the beginning of its paths, which some variables repeat."""

    name: str
    path: str = ""

    @property
    def variable(self) -> str:
        return f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{self.name.upper()}"


COMPUTE = Service("compute", "/compute/v1")
STORAGE = Service("storage", "/storage/v1")
SECRETS = Service("secretmanager", "/v1")
KMS = Service("cloudkms", "/v1")
IAM = Service("iam", "/v1")
IAM_CREDENTIALS = Service("iamcredentials", "/v1")
PROJECTS = Service("cloudresourcemanager", "/v1")


def endpoint(service: Service, *, configured: str = "", environment: Mapping[str, str]) -> str:
    """Without a slash at its end. `configured` (the configuration's own) wins, then the variable that gcloud reads; storage
    also has the variable of its emulators."""
    found = configured or environment.get(service.variable, "")
    if not found and service is STORAGE and (found := environment.get("STORAGE_EMULATOR_HOST", "")):
        found = found if "://" in found else f"http://{found}"
    if not found:
        return f"https://{service.name}.googleapis.com"
    return found.rstrip("/").removesuffix(service.path)
