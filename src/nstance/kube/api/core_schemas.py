"""Schemas of core kinds, for the fields that this server reads. Other fields may be any JSON.

A real server decodes objects into types. Without these checks, a selector that is a number would fail later, when it is
evaluated.
"""

from nstance.kube.port import Object


def _object(**properties: Object) -> Object:
    return {"type": "object", "properties": properties, "nullable": True}


def _list(items: Object) -> Object:
    return {"type": "array", "items": items, "nullable": True}


_TEXT: Object = {"type": "string"}
_NUMBER: Object = {"type": "integer"}
_AMOUNT: Object = {"x-kubernetes-int-or-string": True}
_TEXTS: Object = {"type": "object", "additionalProperties": _TEXT, "nullable": True}
_OBJECT: Object = {"type": "object", "nullable": True}
_SELECTOR = _object(matchLabels=_TEXTS, matchExpressions=_list(_object(key=_TEXT, operator=_TEXT, values=_list(_TEXT))))
_CONDITIONED = _object(phase=_TEXT, conditions=_list(_object(type=_TEXT, status=_TEXT)))
_SIZED = _object(spec=_object(replicas=_NUMBER, selector=_SELECTOR), status=_OBJECT)
_VERSION = _object(
    name=_TEXT,
    schema=_OBJECT,
    subresources=_object(status=_OBJECT, scale=_OBJECT),
    additionalPrinterColumns=_list(_object(name=_TEXT, type=_TEXT, jsonPath=_TEXT, priority=_NUMBER)),
    selectableFields=_list(_object(jsonPath=_TEXT)),
)
_NAMES = _object(
    plural=_TEXT, kind=_TEXT, singular=_TEXT, listKind=_TEXT, shortNames=_list(_TEXT), categories=_list(_TEXT)
)

SCHEMAS: dict[str, Object] = {
    "namespaces": _object(spec=_OBJECT, status=_OBJECT),
    "nodes": _object(spec=_OBJECT, status=_CONDITIONED),
    "pods": _object(spec=_object(containers=_list(_object(name=_TEXT)), nodeName=_TEXT), status=_CONDITIONED),
    "secrets": _object(data=_TEXTS, stringData=_TEXTS, type=_TEXT),
    "configmaps": _object(data=_TEXTS, binaryData=_TEXTS),
    "events": _object(involvedObject=_OBJECT, source=_OBJECT),
    "replicationcontrollers": _object(spec=_object(replicas=_NUMBER, selector=_TEXTS), status=_OBJECT),
    "deployments.apps": _SIZED,
    "replicasets.apps": _SIZED,
    "statefulsets.apps": _SIZED,
    "leases.coordination.k8s.io": _object(spec=_OBJECT),
    "poddisruptionbudgets.policy": _object(
        spec=_object(selector=_SELECTOR, minAvailable=_AMOUNT, maxUnavailable=_AMOUNT), status=_OBJECT
    ),
    "customresourcedefinitions.apiextensions.k8s.io": _object(
        spec=_object(group=_TEXT, scope=_TEXT, names=_NAMES, versions={"type": "array", "items": _VERSION}),
        status=_OBJECT,
    ),
}
