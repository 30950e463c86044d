"""Shell scripts in: the words that a launch would be given, found without running any of it.

Variables, defaults, arrays, sums and conditions are followed as far as the script itself settles them,
as if it were called with no arguments and an empty environment. What it does not settle keeps its
dollar sign. `launch_words` is the way in; `Script` walks over the statements that `reader.Reader` cuts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from computeflow.errors import InputError
from computeflow.files.limits import CONFIG_BYTES, DEPTH
from computeflow.planning.exports.frameworks.shell.reader import Reader, Word
from computeflow.planning.exports.frameworks.shell.shell_values import Values, tested

_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_FLAGS = re.compile(r"\s--\w")
_DECLARING = ("export", "local", "readonly", "declare", "typeset")
_SHELLS = ("sbatch", "bash", "sh", "srun")
_SBATCH = {
    "nodes": re.compile(r"^#SBATCH.*?\s(?:--nodes[= ]|-N[ \t]*)(\d{1,6})\b", re.MULTILINE),
    "devices": re.compile(
        r"^#SBATCH.*?\s--(?:gres=gpu|gpus-per-node)[=:](?:[A-Za-z][\w-]*:)?(\d{1,3})\b",
        re.MULTILINE,
    ),
    "tasks": re.compile(r"^#SBATCH.*?\s--ntasks-per-node[= ](\d{1,4})\b", re.MULTILINE),
}
_SLURM = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "devices": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    "tasks": ("SLURM_NTASKS_PER_NODE",),
}


def launch_words(text: str, where: str) -> list[str]:
    """Words of the command that is given most flags; in an argument file, all words."""
    return read_launch(text, where)[0]


def read_launch(text: str, where: str) -> tuple[list[str], dict[str, str]]:
    """The same words, and the variables that the script sets."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if all(line.startswith("--") for line in lines):
        words = " ".join(re.sub(r"\s#.*$|[\"'\\]", " ", line) for line in lines).split()
        return words, {}
    script = Script(where)
    for name, number in slurm(text).items():
        script.values.known |= dict.fromkeys(_SLURM[name], str(number))
    script.follow(text)
    return script.launch(), script.values.known


def slurm(text: str) -> dict[str, int]:
    """Nodes, and devices and tasks of a node, as #SBATCH lines state them."""
    matches = {name: pattern.search(text) for name, pattern in _SBATCH.items()}
    return {name: int(match[1]) for name, match in matches.items() if match}


@dataclass(slots=True)
class _Frame:
    """An `if`, a loop, a `case` or a group that is open."""

    kind: str
    outer: bool | None
    live: bool | None
    """Whether its current body runs; None: the script does not settle it."""
    reading: str = ""
    """`test` or `pattern` while that is read, and not a body."""
    cond: bool | None = None
    joint: str = ""
    done: bool | None = False
    """Whether a branch before this one ran."""
    subject: str = ""
    patterns: list[str] = field(default_factory=list)
    """Patterns of the case that is being read, as far as they were."""


class Script:
    def __init__(self, where: str) -> None:
        self.where = where
        self.values = Values(where=where)
        self.commands: list[tuple[bool, str]] = []
        """With whether it certainly runs."""
        self._frames: list[_Frame] = []
        self._depth = 0

    @property
    def live(self) -> bool | None:
        return self._frames[-1].live if self._frames else True

    def follow(self, text: str) -> None:
        for words, end, bodies in Reader(text).statements():
            self._statement(words, end)
            if not bodies or self.live is False or self._depth >= 2:
                continue
            first = words[0] if words else ""
            if isinstance(first, str) and self.values.filled(first) in _SHELLS:
                self._depth += 1
                for body in bodies:
                    self.follow(self.values.filled(body, quotes=False))
                self._depth -= 1

    def launch(self) -> list[str]:
        """The command with most flags, and lines of flags that follow no command."""
        texts = [text for _, text in self.commands if text.startswith("--")]
        others = [(sure, text) for sure, text in self.commands if not text.startswith("--")]
        best = max(others, key=lambda it: (len(_FLAGS.findall(it[1])), it[0]), default=(True, ""))
        if _FLAGS.search(best[1]):
            texts.insert(0, best[1])
        if not texts:  # a file of arguments for another script to use
            texts = [value for value in self.values.known.values() if "--" in value]
        return " ".join(texts).split()

    def push(self, frame: _Frame) -> None:
        if len(self._frames) >= DEPTH:
            raise InputError(f"{self.where}: nested too deeply: more than {DEPTH} levels")
        self._frames.append(frame)

    def top(self, kind: str) -> _Frame | None:
        return self._frames[-1] if self._frames and self._frames[-1].kind == kind else None

    def pop(self, kind: str) -> None:
        if self.top(kind):
            self._frames.pop()

    def _statement(self, words: list[Word], end: str) -> None:
        place = 0
        while place < len(words) and isinstance(word := words[place], str) and word in _KEYWORDS:
            following = words[place + 1] if place + 1 < len(words) else "$"
            place += 1 + _KEYWORDS[word](self, following)
        words = words[place:]
        if case := self.top("case"):
            self._run(self._pattern(case, words))
            if end == ";;":
                case.reading, case.live = "pattern", False
        elif self._frames and self._frames[-1].reading == "test":
            if words:
                self._condition(self._frames[-1], words, end)
        else:
            self._run(words)

    def _condition(self, frame: _Frame, words: list[Word], end: str) -> None:
        result = tested(_texts(words), self.values)
        if frame.joint == "&&":
            result = _both(frame.cond, result)
        elif frame.joint == "||":
            result = _either(frame.cond, result)
        frame.cond, frame.joint = result, end

    def _pattern(self, frame: _Frame, words: list[Word]) -> list[Word]:
        """Words without the pattern before the body of a case; a bracket ends it."""
        if frame.reading != "pattern":
            return words
        end = words.index(")") if ")" in words else len(words)
        read = [self.values.filled(w) for w in words[:end] if isinstance(w, str) and w != "("]
        frame.patterns += read
        if end < len(words):
            frame.cond = self.values.matched(frame.subject, frame.patterns)
            frame.reading, frame.patterns = "", []
            frame.live = _branch(frame)
        return words[end + 1 :]

    def _run(self, words: list[Word]) -> None:
        if self.live is False:
            return
        assigned = list(itertools.takewhile(_assigns, words))
        for word in assigned:
            self._assign(word)
        words = words[len(assigned) :]
        plain = _texts(words)
        if not plain:
            return
        if plain[0] in _DECLARING:
            for word in filter(_assigns, words[1:]):
                self._assign(word)
        elif plain[0] == "unset":
            self.values.forget(plain[1:])
        elif plain[0] not in ("echo", "printf", "[", "[["):
            self._command(plain)

    def _command(self, plain: list[str]) -> None:
        filled = [self.values.filled(word) for word in plain]
        if "-c" in filled[:-1]:  # a shell's own text: it fills in what single quotes kept
            index = filled.index("-c") + 1
            filled[index] = self.values.filled(filled[index], quotes=False)
        text = " ".join(filled).strip()
        if "--" in text:
            self.commands.append((self.live is True, text))

    def _assign(self, word: Word) -> None:
        if isinstance(word, tuple):
            name, adds, items = word
            value = " ".join(self.values.filled(item) for item in items)
        else:
            name, adds, written = _ASSIGNED.findall(word)[0]
            value = self.values.filled(written)
        if self.live is None:
            value = f"${{{name}}}"  # perhaps assigned: not settled
        elif adds:
            space = " " if isinstance(word, tuple) else ""
            value = f"{self.values.known.get(name, '')}{space}{value}"
        self.values.known[name] = self.values.counted(value)


def _assigns(word: Word) -> bool:
    return isinstance(word, tuple) or _ASSIGNED.match(word) is not None


def _texts(words: list[Word]) -> list[str]:
    return [word for word in words if isinstance(word, str)]


def _both(first: bool | None, second: bool | None) -> bool | None:
    return False if False in (first, second) else None if None in (first, second) else True


def _either(first: bool | None, second: bool | None) -> bool | None:
    return True if True in (first, second) else None if None in (first, second) else False


def _branch(frame: _Frame) -> bool | None:
    """Whether a branch of this condition runs, after those before it."""
    live = _both(frame.outer, frame.cond)
    live = False if frame.done is True else None if frame.done is None and live else live
    if frame.cond is True:
        frame.done = True
    elif frame.cond is None and frame.done is False:
        frame.done = None
    return live


_Keyword = Callable[[Script, Word], int]
"""Given the word that follows; how many words of its statement belong to the keyword."""


def _if(script: Script, following: Word) -> int:
    script.push(_Frame(kind="if", outer=script.live, live=False, reading="test"))
    return 0


def _elif(script: Script, following: Word) -> int:
    if frame := script.top("if"):
        frame.reading, frame.cond, frame.joint = "test", None, ""
    return 0


def _then(script: Script, following: Word) -> int:
    if frame := script.top("if"):
        frame.reading, frame.live = "", _branch(frame)
    return 0


def _else(script: Script, following: Word) -> int:
    if frame := script.top("if"):
        frame.cond = True
        frame.live = _branch(frame)
    return 0


def _while(script: Script, following: Word) -> int:
    script.push(_Frame(kind="loop", outer=script.live, live=False, reading="test"))
    return 0


def _for(script: Script, following: Word) -> int:
    if isinstance(following, str) and following.isidentifier():
        script.values.known[following] = f"${{{following}}}"
    script.push(_Frame(kind="loop", outer=script.live, live=script.live))
    return CONFIG_BYTES  # all of them: what is looped over is not followed


def _do(script: Script, following: Word) -> int:
    frame = script.top("loop")
    if frame is not None and frame.reading:
        frame.reading = ""
        frame.live = False if frame.cond is False or frame.outer is False else None
    return 0


def _case(script: Script, following: Word) -> int:
    subject = script.values.filled(following) if isinstance(following, str) else "$"
    script.push(
        _Frame(kind="case", outer=script.live, live=False, reading="pattern", subject=subject)
    )
    return 2


def _group(script: Script, following: Word) -> int:
    script.push(_Frame(kind="group", outer=script.live, live=script.live))
    return 0


def _nothing(script: Script, following: Word) -> int:
    return 0


def _closing(kind: str) -> _Keyword:
    def close(script: Script, following: Word) -> int:
        script.pop(kind)
        return 0

    return close


_KEYWORDS: dict[str, _Keyword] = {
    "if": _if,
    "elif": _elif,
    "then": _then,
    "else": _else,
    "fi": _closing("if"),
    "while": _while,
    "until": _while,
    "for": _for,
    "do": _do,
    "done": _closing("loop"),
    "case": _case,
    "esac": _closing("case"),
    "{": _group,
    "}": _closing("group"),
    "(": _nothing,
    ")": _nothing,
}
