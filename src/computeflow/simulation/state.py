"""Where every lane stands: its clock, its work, what is safe of it, and the books.

A lane is down from an event until `up`: it notices (`noticed`), waits for nodes (`ready`), then
starts again. Until `corrupt` it computes in vain, because of an error that is not noticed yet.
While it runs, work and saves alternate: `interval` seconds of work at full speed, then a stall. A
save is safe `persist_seconds` after its stall.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.simulation.draws import Floats, Ints
from computeflow.simulation.lanes import CAUSES, Lanes

RESTART, CHECKPOINT, STARTUP = range(3)
"""Accounts that the first and last part of a time down can go to."""


class State:
    def __init__(self, lanes: Lanes) -> None:
        count = len(lanes)
        self.lanes = lanes
        self.stall = lanes.conditions["stall_seconds"]
        self.persist = lanes.conditions["persist_seconds"]
        self.throttle = lanes.conditions["throttle"]
        zero = np.zeros(count)
        self.now, self.noticed = zero.copy(), zero.copy()
        self.ready, self.corrupt = zero.copy(), zero.copy()
        self.up = lanes.conditions["startup_seconds"].copy()
        self.first_part: Ints = np.full(count, RESTART)
        self.last_part: Ints = np.full(count, STARTUP)
        self.saves, self.safe = zero.copy(), zero.copy()
        """Saves made, and of them those known to be safe since the last start."""
        self.worked, self.writing, self.kept = zero.copy(), zero.copy(), zero.copy()
        """Work of the present interval and time of its save; beyond `safe`, work that a planned stop
        has saved."""
        self.spared = zero.copy()
        """Stalls that did not happen, because a planned stop ended the save."""
        self.slow: NDArray[np.bool_] = np.zeros(count, dtype=np.bool_)
        self.missing: Ints = np.zeros(count, dtype=np.int64)
        """Nodes that the job goes on without."""
        self.size: Floats = np.ones(count)
        """Share of the job that runs, where it shrinks."""
        self.booked = np.zeros((3, count))
        """Seconds of the first and last part of times down, by account."""
        self.waited, self.in_vain, self.ran = zero.copy(), zero.copy(), zero.copy()
        self.slow_work, self.shrunk = zero.copy(), zero.copy()
        """Kept work that was slow, and extra time of kept work because the job was smaller."""
        self.counts = np.zeros((count, len(CAUSES)), dtype=np.int64)
        self.planned: Ints = np.zeros(count, dtype=np.int64)
        self.waits: Ints = np.zeros(count, dtype=np.int64)
        self._every = np.arange(count)

    @property
    def position(self) -> Floats:
        """Seconds of work done, at full speed."""
        return np.asarray(self.saves * self.lanes.interval + self.worked)

    def speed(self) -> Floats:
        slow = 1 + self.slow * self.lanes.conditions["straggler_slowdown"]
        return np.asarray(self.size / (slow * (1 + self.throttle)))

    def finish(self) -> Floats:
        """When the work is done, if nothing happens before."""
        left = self.lanes.work - self.position
        finite = np.where(np.isfinite(left), left, 0.0)
        stalls = np.ceil((self.worked + finite) / self.lanes.interval - 1e-9) - 1
        wall = finite / self.speed() + np.maximum(stalls, 0) * self.stall - self.writing
        done = np.maximum(self.now, self.up) + np.maximum(wall, 0.0)
        return np.where(np.isfinite(left), done, np.inf)

    def advance(self, until: Floats) -> None:
        """Everything up to `until`, which is not before `now`: the time down, then work and saves."""
        self._book_down(until)
        seconds = np.maximum(until - np.maximum(self.now, self.up), 0.0)
        speed = self.speed()
        before = self.position
        work_wall = self.lanes.interval / speed
        cycle = work_wall + self.stall
        wall = self.worked / speed + self.writing + seconds
        more = np.floor(wall / cycle)
        rest = wall - more * cycle
        self.saves += more
        self.worked = np.minimum(rest, work_wall) * speed
        self.writing = np.maximum(rest - work_wall, 0.0)
        self.ran += seconds
        done = self.position - before
        self.slow_work += done * self.slow
        self.shrunk += done * (1 - self.size) / speed
        self.now = np.maximum(until, self.now)

    def _book_down(self, until: Floats) -> None:
        end = np.minimum(until, self.up)
        seen = np.maximum(self.now, self.corrupt)
        known = np.maximum(seen, self.noticed)
        first = np.maximum(np.minimum(end, self.noticed) - seen, 0.0)
        last = np.maximum(end - np.maximum(known, self.ready), 0.0)
        self.in_vain += np.maximum(np.minimum(end, self.corrupt) - self.now, 0.0)
        self.waited += np.maximum(np.minimum(end, self.ready) - known, 0.0)
        self.booked[self.first_part, self._every] += first
        self.booked[self.last_part, self._every] += last

    def roll_back(self, at: Ints) -> None:
        """To the last safe save, or to what a planned stop saved after it."""
        speed = self.speed()[at]
        interval, stall = self.lanes.interval[at], self.stall[at]
        since = self.worked[at] / speed + self.writing[at]
        cycle = interval / speed + stall
        before = self.saves[at]
        safe = np.floor(before + (since - self.persist[at]) / cycle)
        safe = np.clip(safe, self.safe[at], before)
        back = np.where(safe > self.safe[at], 0.0, self.kept[at])
        lost = (before - safe) * interval + self.worked[at] - back
        self.saves[at] = self.safe[at] = safe
        self.worked[at] = self.kept[at] = back
        self.writing[at] = 0.0
        self.slow_work[at] -= np.minimum(lost * self.slow[at], self.slow_work[at])
        self.shrunk[at] -= np.minimum(lost * (1 - self.size[at]) / speed, self.shrunk[at])

    def stop(self, at: Ints, noticed: Floats, ready: Floats, restart: Floats, first: int) -> None:
        """An interruption: nodes are there at `ready`; a lane that is down starts over.

        What happens to a lane that is down never brings it up earlier.
        """
        self.noticed[at] = noticed
        self.ready[at] = np.maximum(self.ready[at], ready)
        begin = np.maximum(np.maximum(noticed, self.ready[at]), self.corrupt[at])
        self.up[at] = np.maximum(self.up[at], begin + restart)
        self.first_part[at] = first
        self.last_part[at] = RESTART

    def stop_planned(self, at: Ints, hold: Floats | float, restart: Floats) -> None:
        """A stop that saves first, so that nothing is lost; a save under way ends with it."""
        ended = at[self.writing[at] > 0]
        self.saves[ended] += 1
        self.spared[ended] += self.stall[ended] - self.writing[ended]
        self.worked[ended] = self.writing[ended] = 0.0
        self.safe[at] = self.saves[at]
        self.kept[at] = self.worked[at]
        saved = self.now[at] + self.stall[at] + self.persist[at]
        self.stop(at, saved, saved + hold, restart, CHECKPOINT)
        self.planned[at] += 1
