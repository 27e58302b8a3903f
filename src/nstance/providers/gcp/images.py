"""Machine images: the newest of a family, or the newest that matches filters.

Owners are projects; without one, this project's images are searched. `*` in a value stands for anything.
"""

import re
from collections.abc import Sequence

from nstance.gcp.client import Answer
from nstance.providers import errors
from nstance.providers.gcp.compute import Compute
from nstance.providers.port import ImageQuery


class MachineImages:
    """`providers.port.Images`."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute

    async def find_image(self, query: ImageQuery) -> str:
        projects = list(query.owners) or [await self._compute.project()]
        found: list[Answer] = []
        families = query.filters.get("family", ())
        is_family = set(query.filters) == {"family"} and not any("*" in name for name in families)
        for project in projects:
            found += await (self._families(project, families) if is_family else self._matching(project, query))
        if not found:
            shown = ", ".join(f"{name}={'|'.join(values)}" for name, values in query.filters.items())
            raise errors.NotFoundError(f"Google has no image with {shown} (projects: {', '.join(projects)})")
        key = query.sort or "creationTimestamp"
        key = key[:1].lower() + key[1:]
        found.sort(key=lambda image: (str(image.get(key) or ""), str(image.get("name"))))
        return path_of(found[0 if query.order == "asc" else -1])

    async def _families(self, project: str, names: Sequence[str]) -> list[Answer]:
        found = []
        for name in names:
            try:
                path = f"projects/{project}/global/images/family/{name}"
                found.append(await self._compute.call("compute.images.getFromFamily", "GET", path))
            except errors.NotFoundError:
                continue
        return found

    async def _matching(self, project: str, query: ImageQuery) -> list[Answer]:
        wanted = "".join(f'({name} eq "{_pattern(values)}")' for name, values in query.filters.items())
        images = await self._compute.list("compute.images.list", f"projects/{project}/global/images", filter=wanted)
        return [image for image in images if image.get("status") == "READY" and not image.get("deprecated")]


def path_of(image: Answer) -> str:
    """`projects/…/global/images/…`, which is valid whatever the endpoint is."""
    link = str(image.get("selfLink"))
    return link[link.find("projects/") :]


def _pattern(values: Sequence[str]) -> str:
    found = "|".join(".*".join(map(re.escape, value.split("*"))) for value in values)
    return f"({found})" if len(values) > 1 else found
