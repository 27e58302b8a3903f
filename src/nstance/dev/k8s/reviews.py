"""Access and identity reviews: everything is allowed."""

from typing import Any

from nstance.kube.port import Object

_USER = {"username": "dev", "groups": ["system:masters", "system:authenticated"]}
_RULE = {"verbs": ["*"]}


def answer(kind: str, body: Any) -> Object:
    request: Object = body if isinstance(body, dict) else {}
    group = "authentication.k8s.io" if kind in ("TokenReview", "SelfSubjectReview") else "authorization.k8s.io"
    status: Object
    if kind == "SelfSubjectReview":
        status = {"userInfo": _USER}
    elif kind == "TokenReview":
        status = {"authenticated": True, "user": _USER}
    elif kind == "SelfSubjectRulesReview":
        resources = [{**_RULE, "apiGroups": ["*"], "resources": ["*"]}]
        status = {
            "incomplete": False,
            "resourceRules": resources,
            "nonResourceRules": [{**_RULE, "nonResourceURLs": ["*"]}],
        }
    else:
        status = {"allowed": True, "reason": "dev-k8s allows everything"}
    return {"metadata": {}, **request, "apiVersion": f"{group}/v1", "kind": kind, "status": status}
