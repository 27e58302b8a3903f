"""Reads and writes the XML documents of S3."""

import datetime
import re
from collections.abc import Iterable
from xml.etree import ElementTree

from nstance.dev.s3.errors import S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

_INVALID_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Node = tuple[str, "str | Iterable[Node]"]


def write(name: str, children: Iterable[Node], *, namespace: str = NAMESPACE) -> bytes:
    root = ElementTree.Element(name, {"xmlns": namespace} if namespace else {})
    _fill(root, children)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def _fill(element: ElementTree.Element, children: Iterable[Node]) -> None:
    for name, content in children:
        child = ElementTree.SubElement(element, name)
        if isinstance(content, str):
            child.text = content
        else:
            _fill(child, content)


def error(code: str, message: str, *, resource: str, request_id: str) -> bytes:
    children = [("Code", code), ("Message", message), ("Resource", resource), ("RequestId", request_id)]
    return write("Error", children, namespace="")


def read(body: bytes, name: str) -> ElementTree.Element:
    """The root of a request document, without namespaces. Raises S3Error."""
    try:
        root = ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError, LookupError) as problem:  # the last two: a bad encoding
        raise S3Error(400, "MalformedXML", f"expected a {name} document: {problem}") from None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    if root.tag != name:
        raise S3Error(400, "MalformedXML", f"expected a {name} document, found {root.tag}")
    return root


def is_valid_text(text: str) -> bool:
    """Whether all characters are allowed in XML."""
    return _INVALID_CHARACTER.search(text) is None


def timestamp(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
