"""The day on which a question is asked: the one clock that answers read."""

from __future__ import annotations

import datetime


def today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.UTC).date()
