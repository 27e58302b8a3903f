"""Objects as tables for kubectl."""

import json
from collections.abc import Sequence
from typing import Any

from nstance.dev.k8s import columns, jsonpath
from nstance.kube.api.resources import Column, Served
from nstance.kube.port import Object


def table(
    served: Served, items: Sequence[Object], *, meta: Object, now: float, include: str, with_header: bool = True
) -> Object:
    """`include`: what each row contains of its object: Object, Metadata or None."""
    shown = _columns(served)
    rows = []
    for each in items:
        row: Object = {"cells": [column.cell(each, now) for _, column in shown]}
        if include != "None":
            row["object"] = each if include == "Object" else _metadata(each)
        rows.append(row)
    heads = [_head(served, column, description) for description, column in shown] if with_header else []
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "columnDefinitions": heads, "rows": rows}


def _metadata(body: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body.get("metadata", {})}


def _columns(served: Served) -> list[tuple[str, columns.ComputedColumn]]:
    """The columns and their descriptions."""
    computed = columns.COLUMNS.get(served.resource.id)
    if computed is not None:
        return [("", each) for each in computed]
    if not served.version.columns:
        return [("", columns.NAME), ("", columns.AGE)]
    printed = [
        (each.description, columns.ComputedColumn(each.name, _cell(each), each.type, each.priority))
        for each in served.version.columns
    ]
    return [("", columns.NAME), *printed]


def _head(served: Served, column: columns.ComputedColumn, description: str) -> Object:
    return {
        "name": column.name,
        "type": "string" if column.type == "date" else column.type,
        "format": "name" if column.name == "Name" and not column.priority else "",
        "description": description or f"{column.name} of the {served.resource.kind}",
        "priority": column.priority,
    }


def _cell(column: Column) -> columns.Cell:
    def cell(body: Object, now: float) -> Any:
        found = jsonpath.find(body, column.path)
        if not found:
            return None if column.type in ("integer", "number", "boolean") else ""
        if column.type == "date":
            return columns.format_age(found[0], now)
        if column.type in ("integer", "number", "boolean"):
            return found[0]
        return ",".join(map(_text, found))

    return cell


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
