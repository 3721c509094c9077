"""A figure as an SVG element to stand inside a page: small, without identifiers that clash, in the page's own letters and ink."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def inline_svg(figure: Figure, name: str, title: str) -> str:
    """The figure as one ``<svg>`` element whose identifiers start with ``name``; ``title`` is read to those who cannot see it.

    Text stays text, in the page's typeface; black becomes the page's colour of text; the background is left to the page.
    """
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(drawn.getvalue())
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    _drop_styles(root)
    referenced = set(re.findall(r"#([\w-]+)", drawn.getvalue().partition("<svg")[2]))
    for element in root.iter():
        _rewrite(element, name, referenced)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", title)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _drop_styles(root: ElementTree.Element) -> None:
    """A style sheet inside would hold for the whole page, which has its own."""
    for parent in list(root.iter()):
        for style in parent.findall(f"{{{SVG}}}style"):
            parent.remove(style)


def _rewrite(element: ElementTree.Element, name: str, referenced: set[str]) -> None:
    for key, value in list(element.attrib.items()):
        if key == "id":
            if value in referenced:
                element.set("id", f"{name}-{value}")
            else:
                del element.attrib["id"]
        elif key in ("clip-path", f"{{{XLINK}}}href", "href"):
            element.set(key, value.replace("#", f"#{name}-"))
        elif key == "d":
            element.set(key, re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value).strip())
        elif key == "style":
            value = re.sub(r"font: (?:[a-z]+ )*([\d.]+px)[^;]*", r"font-size: \1", value)
            value = re.sub(r"font-family: [^;]*;? ?", "", value)
            element.set(key, re.sub(r"#000000|\bblack\b", "currentColor", value))
