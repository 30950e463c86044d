"""`read_rank_places`: on which node each rank of a run was last heard, from a collector's store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from computeflow.collection.outputs.snapshots import STATE_FILE
from computeflow.collection.store.state_reading import read_state
from computeflow.errors import InputError
from computeflow.files.names import shown

_MAX_RANKS = 65_536
_QUERY = """
SELECT rank, node, max(attempt) FROM ranks WHERE run = ? GROUP BY rank ORDER BY rank LIMIT ?
"""


def read_rank_places(folder: Path, runs: Iterable[str]) -> dict[str, dict[int, str]]:
    """Rank to node, by run; a run whose ranks are not known yet is not among them."""
    names = tuple(runs)
    try:
        places = read_state(folder / STATE_FILE, lambda database: _places(database, names))
    except sqlite3.DatabaseError as error:
        if "no such table" in str(error):
            return {}
        raise InputError(f"{shown(str(folder))}: {STATE_FILE}: {error}") from None
    return {run: found for run, found in places.items() if found}


def _places(database: sqlite3.Connection, runs: Iterable[str]) -> dict[str, dict[int, str]]:
    return {
        run: {rank: node for rank, node, _ in database.execute(_QUERY, (run, _MAX_RANKS))}
        for run in runs
    }
