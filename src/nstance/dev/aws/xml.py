"""Editing moto's XML replies, and writing AWS's errors."""

from collections.abc import Callable
from xml.etree import ElementTree
from xml.sax.saxutils import escape

Element = ElementTree.Element


def error(service: str, code: str, message: str) -> bytes:
    if service == "ec2":
        inner = f"<Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors>"
        return f"<Response>{inner}<RequestID>stand-in</RequestID></Response>".encode()
    if service == "s3":
        return f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode()
    inner = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    return f"<ErrorResponse>{inner}<RequestId>stand-in</RequestId></ErrorResponse>".encode()


def local(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def children(element: Element, name: str) -> list[Element]:
    return [child for child in element if local(child) == name]


def entries(element: Element, name: str) -> list[Element]:
    """Of a list that is a child of the element."""
    return [entry for holder in children(element, name) for entry in holder]


def all_entries(root: Element, name: str) -> list[Element]:
    """Of all lists of that name."""
    return [entry for holder in find(root, name) for entry in holder]


def tags(element: Element) -> dict[str, str]:
    return {text(tag, "key"): text(tag, "value") for tag in entries(element, "tagSet")}


def text(element: Element, *path: str) -> str:
    for name in path:
        found = children(element, name)
        if not found:
            return ""
        element = found[0]
    return element.text or ""


def find(element: Element, name: str) -> list[Element]:
    return [each for each in element.iter() if local(each) == name]


def keep(root: Element, name: str, wanted: Callable[[Element], bool]) -> None:
    """Remove the entries of all lists of that name that are not wanted."""
    for holder in find(root, name):
        for entry in list(holder):
            if not wanted(entry):
                holder.remove(entry)


def add(parent: Element, name: str, value: str) -> Element:
    namespace = parent.tag.rpartition("}")[0]
    child = ElementTree.SubElement(parent, f"{namespace}}}{name}" if namespace else name)
    child.text = value
    return child


def set_text(element: Element, value: str, *path: str) -> None:
    for name in path:
        element = children(element, name)[0]
    element.text = value


def renamed(element: Element, name: str) -> Element:
    namespace = element.tag.rpartition("}")[0]
    element.tag = f"{namespace}}}{name}" if namespace else name
    return element


def parse(body: bytes) -> Element:
    return ElementTree.fromstring(body)


def write(root: Element) -> bytes:
    body: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return body
