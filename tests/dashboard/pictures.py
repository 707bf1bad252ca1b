"""Pictures of the whole page, however long it is."""

from __future__ import annotations

import io
from typing import Final

from PIL import Image

from tests.dashboard.browser import Page

COLOURS: Final = 96
HEIGHT_MAX: Final = 9000


def whole_page(page: Page, width: int) -> Image.Image:
    """The page at this width from top to bottom, in few colours so that the file is small."""
    page.size(width, 1000)
    page.drawn()
    height = int(page.run("return document.documentElement.scrollHeight"))
    page.size(width, min(height, HEIGHT_MAX))
    page.drawn()
    page.drawn()
    picture = Image.open(io.BytesIO(page.browser.get_screenshot_as_png())).convert("RGB")
    assert picture.width == width
    return picture.quantize(COLOURS)
