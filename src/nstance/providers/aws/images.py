"""Machine images (AMIs): the newest that matches, or the one that a public SSM parameter names."""

from collections.abc import Sequence

from nstance.aws.client import EC2, SSM, AwsClient
from nstance.aws.encoding import Answer, entries
from nstance.providers import errors
from nstance.providers.aws.faults import translated
from nstance.providers.port import ImageQuery


class MachineImages:
    """`providers.port.Images`."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client

    async def find_image(self, query: ImageQuery) -> str:
        if query.parameter:
            return await self._by_parameter(query.parameter)
        found = await self._images(query)
        if not found:
            shown = ", ".join(f"{name}={'|'.join(values)}" for name, values in query.filters.items())
            raise errors.NotFoundError(f"EC2 has no image with {shown} (owners: {', '.join(query.owners) or 'any'})")
        key = query.sort or "creationDate"
        key = key[:1].lower() + key[1:]
        found.sort(key=lambda image: (str(image.get(key) or ""), str(image.get("imageId"))))
        return str(found[0 if query.order == "asc" else -1]["imageId"])

    async def _by_parameter(self, name: str) -> str:
        with translated("ssm:GetParameter", changes=False):
            answer = await self._client.json(SSM, "GetParameter", {"Name": name})
        parameter = answer.get("Parameter")
        value = str(parameter.get("Value") or "") if isinstance(parameter, dict) else ""
        if not value.startswith("ami-"):
            raise errors.PermanentError(
                f"SSM parameter {name}: expected the ID of an image (ami-...), found {value[:60]!r}",
                parameter="ssm_parameter",
            )
        return value

    async def _images(self, query: ImageQuery) -> list[Answer]:
        params: dict[str, object] = {
            "Filter": [{"Name": name, "Value": list(values)} for name, values in query.filters.items()],
            "Owner": list(query.owners),
        }
        found: list[Answer] = []
        token = ""
        while True:
            page = {"NextToken": token} if token else {}
            with translated("ec2:DescribeImages", changes=False):
                answer = await self._client.query(EC2, "DescribeImages", {**params, **page})
            found += _available(entries(answer, "imagesSet"))
            token = str(answer.get("nextToken") or "")
            if not token:
                return found


def _available(images: Sequence[Answer]) -> list[Answer]:
    return [image for image in images if image.get("imageState", "available") == "available"]
