"""The one error tree. Everything the library raises on purpose is a `ComputeFlowError`.

    ComputeFlowError              something the user can act on (exit 1)
    ├── InputError                the input is wrong: value, limit, remedy in the message (exit 2)
    │   ├── UnknownNameError      a name that is not there, with the nearest ones that are
    │   └── LedgerError           a ledger that does not close, or two that cannot be compared
    ├── OutputError               what was computed could not be written: a full disk, no permission
    └── UnavailableError          this machine lacks something; the message says how to get it

Anything else that escapes is a bug in ComputeFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class ComputeFlowError(Exception):
    exit_code = 1


class InputError(ComputeFlowError):
    exit_code = 2


class LedgerError(InputError):
    pass


class OutputError(ComputeFlowError):
    """The machine failed to take the answer; nothing the user wrote is wrong."""


class UnavailableError(ComputeFlowError):
    pass


class UnknownNameError(InputError):
    """`name` is not one of `known`; the message carries the nearest valid names.

    `means` maps spellings to proper names, where the known ones are aliases. Where none is near, a
    short list of them is written out.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        known: Iterable[str],
        *,
        means: Mapping[str, str] | None = None,
        hint: str = "",
    ) -> None:
        self.kind = kind
        self.name = name
        known = list(known)
        near = nearest(name, known, most=12 if means else 3)
        self.near = tuple(dict.fromkeys((means or {}).get(n, n) for n in near))[:3]
        proper = dict.fromkeys((means or {}).get(n, n) for n in known)
        listed = f"; choose one of {', '.join(proper)}" if 0 < len(proper) <= _SHORT_LIST else ""
        if self.near or hint:
            listed = f"; nearest: {', '.join(self.near)}" if self.near else ""
        hint = f" ({hint})" if hint else ""
        super().__init__(f"unknown {kind} {_quoted(name)}{listed}{hint}")


_SHORT_LIST = 30
"""Names that an error writes out where none of them is near."""
_LONGEST = 200
"""Longest name that is compared with others; it takes time by the product of the lengths."""


def _quoted(name: str) -> str:
    """The name in quotes, escaped once: printable text may be escaped already."""
    cut = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    return f"'{cut}'" if cut.isprintable() else repr(cut)


def nearest(name: str, known: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """The known names closest to `name`, best first; those that contain it whole come first."""
    import difflib  # only where a name was wrong

    if len(name) > _LONGEST:
        return ()
    wanted = name.casefold()
    folded = {spelling.casefold(): spelling for spelling in reversed(list(known))}
    containing = sorted((n for n in folded if len(wanted) >= 3 and wanted in n), key=len)
    close = difflib.get_close_matches(wanted, folded, n=most, cutoff=0.6)
    return tuple(folded[n] for n in dict.fromkeys([*containing, *close]))[:most]
