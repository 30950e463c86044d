"""Time of a device, from the host's spans and how far behind them it came to their end: `on_device`.

The device works through what the host queues, in order: of a span it begins when it has ended the one
before and the host has begun it, and ends `lead` after the host. What the host does meanwhile costs
nothing; only where the device has come to the end of its queue is it idle, by what the host does then.

Neglected: idle times inside a span (launches that come too late), which only a trace shows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from computeflow.telemetry.run_folders.rank_file import Pieces, RankFile


def on_device(file: RankFile) -> RankFile:
    """The file with the device's time in the place of the host's, where leads were kept."""
    if not len(file.leads) or not len(file.pieces):
        return file
    return replace(file, pieces=device_pieces(file.pieces, file.leads))


def device_pieces(host: Pieces, leads: Pieces) -> Pieces:
    """The host's pieces with the device's upon them; leads begin with the host, end on the device."""
    return _covered(host, _busy(leads, host))


def _busy(leads: Pieces, host: Pieces) -> Pieces:
    order = np.argsort(leads.end, kind="stable")  # a span that holds others ends after them
    first, kind = leads.start[order], leads.kind[order]
    end = np.minimum(np.maximum.accumulate(leads.end[order]), host.end[-1])
    start = first.copy()
    start[1:] = np.maximum(first[1:], end[:-1])
    keep = end > start
    return Pieces(start=start[keep], end=end[keep], kind=kind[keep])


def _covered(under: Pieces, over: Pieces) -> Pieces:
    """Pieces of `under` with those of `over` laid upon them."""
    edges = np.unique(np.concatenate([under.start, under.end, over.start, over.end]))
    edges = edges[(edges >= under.start[0]) & (edges <= under.end[-1])]
    start, end = edges[:-1], edges[1:]
    kind = under.kind[np.searchsorted(under.start, start, side="right") - 1]
    if len(over):
        place = np.searchsorted(over.start, start, side="right") - 1
        inside = (place >= 0) & (start < over.end[np.maximum(place, 0)])
        kind = np.where(inside, over.kind[np.maximum(place, 0)], kind)
    return Pieces(start=start, end=end, kind=kind)
