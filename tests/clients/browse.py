"""The page at ``/`` in a headless Chromium: every tab is used by the keyboard, and what it shows is returned."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import choreographer
from exchange import GIVEN, answer

WAIT_S = 240
KEYS = {"ArrowRight": 39, "Enter": 13, "Tab": 9, "End": 35, "Home": 36}
CONTROL = 2
ROWS = """[...document.querySelectorAll('#PANEL .answer tr, #PANEL #now-table tr')].slice(1)
  .map(row => [...row.cells].map(cell => cell.textContent))"""
BARS = "[...document.querySelectorAll('#PANEL .bar')].map(bar => bar.getBoundingClientRect().width)"
TABS = "[...document.querySelectorAll('[role=tab]:not([hidden])')].map(tab => tab.textContent)"
# A panel is done when its button can be pressed again, and has something to show.
DONE = (
    "!document.querySelector('#PANEL .go').disabled && !!document.querySelector('#PANEL .answer').textContent"
)


class Page:
    """One tab of the browser, at the page."""

    def __init__(self, tab: choreographer.Tab) -> None:
        self.tab = tab

    async def evaluate(self, expression: str) -> Any:
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        reply = (await self.tab.send_command("Runtime.evaluate", given))["result"]
        assert "exceptionDetails" not in reply, (expression, reply)
        return reply["result"].get("value")

    async def until(self, expression: str) -> None:
        for _ in range(WAIT_S * 10):
            if await self.evaluate(expression):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(expression)

    async def press(self, key: str, modifiers: int = 0) -> None:
        of_key = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        for kind in ("rawKeyDown", "keyUp"):
            await self.tab.send_command("Input.dispatchKeyEvent", {"type": kind, **of_key})

    async def picture(self, name: str) -> None:
        if GIVEN.get("pictures"):
            reply = await self.tab.send_command("Page.captureScreenshot", {"captureBeyondViewport": True})
            Path(GIVEN["pictures"], f"{name}.png").write_bytes(base64.b64decode(reply["result"]["data"]))


async def use(page: Page, panel: str) -> dict[str, Any]:
    """Go to a panel's first field by Tab, send its form by Control and Enter, and read what it shows."""
    assert await page.evaluate("document.activeElement.id") == f"tab-{panel}"
    await page.press("Tab")
    assert await page.evaluate(f"document.getElementById('{panel}').contains(document.activeElement)")
    await page.press("Enter", CONTROL)
    await page.until(DONE.replace("PANEL", panel))
    seen = {
        "rows": await page.evaluate(ROWS.replace("PANEL", panel)),
        "bars": await page.evaluate(BARS.replace("PANEL", panel)),
        "command": await page.evaluate(f"document.querySelector('#{panel} pre')?.textContent"),
        "text": await page.evaluate(f"document.querySelector('#{panel} .answer').textContent"),
        "turns": await page.evaluate("[...document.querySelectorAll('.turn span')].map(e => e.textContent)"),
    }
    await page.picture(panel)
    await page.evaluate(f"document.getElementById('tab-{panel}').focus()")
    return seen


async def browse() -> dict[str, Any]:
    async with choreographer.Browser(path=GIVEN["browser"], headless=True, enable_sandbox=False) as browser:
        tab = await browser.create_tab("about:blank")
        page, calls, complaints = Page(tab), [], []

        async def follow(method: str, into: list[Any], at: str) -> None:
            while True:
                event = await tab.subscribe_once(method)
                into.append(event["params"][at])

        for domain in ("Network", "Log", "Page", "Runtime"):
            await tab.send_command(f"{domain}.enable")
        tasks = [
            asyncio.create_task(follow("Network.requestWillBeSent", calls, "request")),
            asyncio.create_task(follow("Log.entryAdded", complaints, "entry")),
            asyncio.create_task(follow("Runtime.exceptionThrown", complaints, "exceptionDetails")),
        ]
        size = {"width": 1000, "height": 1100, "deviceScaleFactor": 1, "mobile": False}
        await tab.send_command("Emulation.setDeviceMetricsOverride", size)
        await tab.send_command("Page.navigate", {"url": GIVEN["url"] + "/"})
        await page.until("document.getElementById('health')?.textContent === 'ready' && !!location.hash")
        tabs = await page.evaluate(
            "[...document.querySelectorAll('[role=tab]')].filter(t => !t.hidden).map(t => t.textContent)"
        )
        await page.evaluate("document.querySelector('[role=tab]:not([hidden])').focus()")
        found: dict[str, Any] = {"tabs": tabs, "title": await page.evaluate("document.title")}
        for name in tabs[:-1]:
            found[name] = await use(page, name.lower())
            await page.press("ArrowRight")
        await page.until("document.querySelectorAll('#now-table tr').length > 1")
        found["Now"] = await page.evaluate(ROWS.replace("PANEL", "now"))
        await page.picture("now")
        colours = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color"
        found["light"] = await page.evaluate(colours)
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        await tab.send_command("Emulation.setEmulatedMedia", dark)
        found["dark"] = await page.evaluate(colours)
        await page.press("Home")
        await page.picture("dark")
        # A wrong field: its message, as an alert, and the form can be sent again.
        await page.evaluate("document.getElementById('score-labels').value = 'Yes'")
        await page.press("Tab")
        await page.press("Enter", CONTROL)
        await page.until("!!document.querySelector('#score [role=alert]')")
        found["alert"] = await page.evaluate("document.querySelector('#score [role=alert]').textContent")
        logits = "bars([[['a'], -2.5], [['b'], 0.5]], ['', '', 'Probability']).outerHTML"
        found["logits"] = await page.evaluate(logits)
        for task in tasks:
            task.cancel()
        found["called"] = sorted({call["url"] for call in calls})
        found["complaints"] = [each.get("text", str(each)) for each in complaints]
        return found


answer(**asyncio.run(browse()))
