"""Machine images: the newest of a family, or the newest that matches filters.

Owners are projects; without one, this project's images are searched. `*` in a value stands for anything.
"""

import re
from collections.abc import Callable, Sequence

from nstance.gcp.client import Answer
from nstance.providers import errors
from nstance.providers.gcp.compute import Compute, regex_filter
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
        filters = query.filters.items()
        first = next((regex_filter(name, _pattern(values, _dotted)) for name, values in filters), "")
        patterns = {
            name: _pattern(values, re.escape) for name, values in filters
        }  # also those that Google was not told
        images = await self._compute.list("compute.images.list", f"projects/{project}/global/images", filter=first)
        return [
            image
            for image in images
            if image.get("status") == "READY"
            and not image.get("deprecated")
            and all(re.fullmatch(pattern, _field(image, name)) for name, pattern in patterns.items())
        ]


def path_of(image: Answer) -> str:
    """`projects/…/global/images/…`, which is valid whatever the endpoint is."""
    link = str(image.get("selfLink"))
    return link[link.find("projects/") :]


def _field(image: Answer, name: str) -> str:
    """`name` may be a path, as in `labels.team`."""
    value: object = image
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _pattern(values: Sequence[str], quoted: Callable[[str], str]) -> str:
    found = "|".join(".*".join(map(quoted, value.split("*"))) for value in values)
    return f"({found})" if len(values) > 1 else found


def _dotted(text: str) -> str:
    """Anything that could mean something in an expression matches as any character."""
    return re.sub(r"[^A-Za-z0-9_-]", ".", text)
