"""`small_png`: a picture of a page with a palette of 256 colours, a third as large as without."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

_COLOURS, _FREQUENT = 256, 64
_PIXELS = """async png => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height), drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  const { data } = drawing.getImageData(0, 0, image.width, image.height);
  const size = 32768;
  let text = "";
  for (let at = 0; at < data.length; at += size) {
    text += String.fromCharCode(...data.subarray(at, at + size));
  }
  return [image.width, image.height, btoa(text)];
}"""


def small_png(browser: Any, png: bytes) -> bytes:
    """The browser reads the pixels; colours become the nearest of those that are kept."""
    page = browser.new_page()
    width, height, text = page.evaluate(_PIXELS, base64.b64encode(png).decode())
    page.close()
    pixels = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, 4)[:, :3].astype(np.int64)
    packed = pixels @ (1 << 16, 1 << 8, 1)
    colours, places, counts = np.unique(packed, return_inverse=True, return_counts=True)
    palette = colours[_kept(_channels(colours), counts)]
    nearest = _apart(_channels(colours), _channels(palette)).argmin(1)
    rows = nearest[places].astype(np.uint8).reshape(height, width)
    lines = np.hstack([np.zeros((height, 1), np.uint8), rows])  # each with filter 0
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", _channels(palette).astype(np.uint8).tobytes()),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _kept(colours: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> list[int]:
    """The most frequent colours, then one after the other that most misses: a small mark keeps its
    colour though few pixels have it.
    """
    kept = [int(place) for place in np.argsort(-counts, kind="stable")[:_FREQUENT]]
    apart = _apart(colours, colours[kept]).min(1)
    while len(kept) < min(_COLOURS, len(colours)):
        kept.append(int((apart * np.sqrt(counts)).argmax()))
        apart = np.minimum(apart, _apart(colours, colours[kept[-1:]])[:, 0])
    return kept


def _apart(colours: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    distances: np.ndarray[Any, Any] = np.abs(colours[:, None] - others[None]).sum(2)
    return distances


def _channels(colours: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
