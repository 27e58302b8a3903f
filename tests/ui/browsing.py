"""A page of the dashboard, and what may not happen on it."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from component.http_world import Browser
from component.whole_server import SHARD
from support.eventually import eventually

WIDTHS = (1440, 1024, 400)
SCHEMES = ("light", "dark")
SECONDS = 30_000  # in milliseconds: ends a hang and measures nothing


@dataclass
class Tab:
    """A page and everything that went wrong on it."""

    page: Any
    base: str
    problems: list[str] = field(default_factory=list)
    allowed: Sequence[str] = ()  # parts of problems that belong to the test

    async def open(self, where: str = "") -> None:
        await self.page.goto(f"{self.base}/#/{where}")
        await self.page.wait_for_selector("main .page, main.login")

    async def see(self, text: str) -> Any:
        found = self.page.get_by_text(text).first
        await found.wait_for(timeout=SECONDS)
        return found

    def check(self) -> None:
        serious = [each for each in self.problems if not any(part in each for part in self.allowed)]
        assert not serious, serious


async def insist(served: Browser, method: str, path: str, body: Any = None) -> None:
    """A change, again while the shard is unsure who leads: the browser takes most of this machine."""

    async def send() -> bool:
        async with served.request(method, path, params={"shard": str(SHARD)}, json=body) as answer:
            assert answer.status in (200, 503), await answer.text()
            return answer.status == 200

    await eventually(send)


@contextlib.asynccontextmanager
async def tab(
    chromium: Any, served: Browser, *, width: int = 1440, scheme: str = "light", allowed: Sequence[str] = ()
) -> AsyncIterator[Tab]:
    """Fails if the page logs an error, throws, or opens a dialog of the browser."""
    context = await chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = await context.new_page()
    page.set_default_timeout(SECONDS)
    found = Tab(page, str(served.make_url("/")).rstrip("/"), allowed=allowed)

    async def dismiss(dialog: Any) -> None:
        found.problems.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    page.on("console", lambda each: found.problems.append(each.text) if each.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.problems.append(f"thrown: {error}"))
    page.on("dialog", dismiss)
    try:
        yield found
        found.check()
    finally:
        await context.close()


# For every text that is shown: its color against the nearest opaque background, by the formula of WCAG 2.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = "#000";
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = rgba(getComputedStyle(each).backgroundColor);
      if (color[3] > 0.95) return color;
    }
    return [255, 255, 255, 1];
  };
  const poor = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const style = getComputedStyle(element);
    const isApart = element.closest(".visually-hidden, :disabled, .skip, noscript");
    const isShown = walker.currentNode.data.trim() && element.checkVisibility() && !isApart;
    if (!isShown) continue;
    const [one, two] = [light(rgba(style.color)), light(behind(element))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) poor.add(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return [...poor];
}"""

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
