"""One rank's file as an agent follows it: `RankTail` reads what has come, and can go back.

It reads as `RankFollower` does, and bounds bytes beside records: a file that anybody may have written
must not fill the agent's memory.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from computeflow.collection.agent.processes import ProcessWatch
from computeflow.collection.wire.batches import RankPart
from computeflow.errors import InputError
from computeflow.recorder.frames import DamagedError, FrameReader
from computeflow.telemetry.opening import open_plain
from computeflow.telemetry.run_folders.rank_file import RankFile, RankStart
from computeflow.telemetry.run_folders.rank_reading import RankColumns

_SKIPPED_BYTES = 512 << 10
_SKIPS = 16
"""How much is passed over in one go on the way to a position, and how often in one reading."""


class RankTail:
    """The records of one rank and attempt, from a position on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = -1
        """Bytes of the file when it was last looked at."""
        self.next = 0
        """Number of the first record that has not been read, or is to be read again."""
        self.ended = False
        self.refused = ""
        """Why the file is not shipped."""
        self.warned = False
        self.process: ProcessWatch | None = None
        self._file: io.FileIO | None = None
        self._reader: FrameReader | None = None
        self._columns = RankColumns()
        self._read = 0
        self.start: RankStart | None = None
        """What the process says of itself; None until it has said it."""

    @property
    def key(self) -> str:
        """`RANK.ATTEMPT`, as the collector names it."""
        start = self.start
        return f"{start.rank}.{start.attempt}" if start else ""

    @property
    def is_short(self) -> bool:
        """Whether the file ends before its position: the records before are another file's."""
        return self.behind and self.size >= 0

    @property
    def behind(self) -> bool:
        """Whether records before the position have yet to be passed over."""
        return self._read < self.next

    def has_news(self) -> bool:
        """Whether anything may have come since the last time."""
        if self.refused:
            return False
        try:
            return os.stat(self.path).st_size != self.size  # noqa: PTH116
        except OSError:
            return False

    def open(self) -> bool:
        """Read the first record, which says whose file it is; False until it is there."""
        if self.start is None and not self.refused:
            self._take(1, _SKIPPED_BYTES)
            self._columns.drain(self.path)
            self.start = self._columns.start
        return self.start is not None

    def read(self, records: int, size: int) -> RankPart | None:
        """The next records; None where there are none, or while it is on its way to its position."""
        if self.behind:
            self._skip()
            if self.behind:
                return None
        first = self._read
        count = self._take(records, size)
        file = self._columns.drain(self.path)
        if not count or file is None or not self._is_same(file):
            return None
        self.next = first + count
        self.ended = self.ended or file.ended is not None
        alive = self.process.alive() if self.process else None
        return RankPart(first=first, records=count, file=file, alive=alive)

    def go_to(self, number: int) -> None:
        """Continue with this record, which may be one that was read already."""
        if number < self._read:
            self.close()
            self._columns = RankColumns()
            self._read = 0
            self.ended = False
        self.next = number
        self.size = -1

    def close(self) -> None:
        """Let go of the file; reading opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = self._reader = None

    def end(self) -> None:
        """Let go of the file and of the process."""
        self.close()
        if self.process is not None:
            self.process.close()

    def _skip(self) -> None:
        """Pass over records up to the position: they have names and groups that later ones refer to."""
        for _ in range(_SKIPS):
            if not self.behind or not self._take(self.next - self._read, _SKIPPED_BYTES):
                return
            self._columns.drain(self.path)

    def _is_same(self, file: RankFile) -> bool:
        if file.start != self.start:
            self.refused = "another file has taken its place"
        return not self.refused

    def _take(self, records: int, size: int) -> int:
        """Read records into the columns; how many. What cannot be read ends the file."""
        try:
            if self._reader is None or self._file is None:
                self._file = open_plain(self.path)
                self._reader = FrameReader(self._file)
            at_end = self._file.seek(0, os.SEEK_END)
            count, begin = 0, -1
            for record in self._reader.read():
                self._columns.take(record, self.path)
                count += 1
                here = self._file.tell()
                begin = here if begin < 0 else begin
                if count >= records or here - begin >= size:
                    break
            else:
                self.size = at_end
        except (DamagedError, InputError, OSError, RecursionError) as error:
            self.refused = str(error)
            self.close()
            return 0
        self._read += count
        return count
