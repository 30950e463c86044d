"""The meaning of kernel messages: `classify_message`. Tables: xids.toml, sxids.toml, messages.toml."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Literal

Stops = Literal["yes", "maybe", "no", "unknown"]
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)(?: GPU-I:(?P<part>\w+))?\): (?P<code>\d{1,9})"
    r"(?:, (?P<text>.*))?"
)
_SXID = re.compile(
    r"nvswitch\d*: SXid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\): (?P<code>\d{1,9})(?:, (?P<text>.*))?"
)
_FABRIC = re.compile(
    r"detected NVSwitch (?P<fatal>non-fatal|fatal) error (?P<code>\d{1,9})"
    r"(?:.*pci bus id (?P<device>[0-9a-fA-F:.]+))?(?:.*port (?P<port>\d+))?"
)
_FATAL = re.compile(r"\b(non-?fatal|fatal)\b", re.IGNORECASE)
_NAME = re.compile(r"\bname='?([^,']+)")
_RECOVERY = re.compile(r"changed from .{0,80} to 0x[0-9a-fA-F]{1,16} \(([^)]{0,80})\)")
_PCI = re.compile(r"(?:[0-9a-f]{4})?([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?")
_NVLINK5 = range(144, 151)
MAX_TEXT = 1024
"""The kernel writes no longer lines (LOG_LINE_MAX)."""
SMALL = 200
"""Characters that are kept of a message's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageClass:
    """The class of a message."""

    what: str
    """Short name: xid 79, link down."""
    kind: Literal["xid", "sxid", "message"]
    code: int | None = None
    meaning: str = ""
    stops: Stops
    """Whether it ends the job whose process or GPU it names."""
    action: str
    fault: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMessage:
    """A classified message, with the device and process it names."""

    sign: MessageClass
    device: str = ""
    """A PCI address, an interface, a server."""
    on_gpu: bool = False
    who: str = ""
    """The process that it names."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    hints: tuple[str, ...]
    expression: re.Pattern[str]
    sign: MessageClass
    on_gpu: bool


@dataclass(frozen=True, slots=True)
class _Tables:
    xids: dict[int, dict[str, Any]]
    xid_source: str
    buckets: dict[str, str]
    sxids: dict[int, tuple[str, dict[str, Any]]]
    sxid_source: str
    messages: tuple[_Pattern, ...]
    hints: tuple[str, ...]
    harmless: frozenset[str]
    """Names of messages that are of no fault."""


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))


@cache
def _tables() -> _Tables:
    xids, sxids = _toml("xids.toml"), _toml("sxids.toml")
    messages = tuple(_pattern(row) for row in _toml("messages.toml")["message"])
    own = ("Xid (", "detected NVSwitch")
    return _Tables(
        {row["code"]: row for row in xids["xid"]},
        xids["source"],
        xids["buckets"],
        {
            int(code): (what, group)
            for group in sxids["group"]
            for code, what in group["codes"].items()
        },
        sxids["source"],
        messages,
        tuple(dict.fromkeys((*own, *(hint for pattern in messages for hint in pattern.hints)))),
        frozenset(pattern.sign.what for pattern in messages if not pattern.sign.fault),
    )


def _pattern(row: dict[str, Any]) -> _Pattern:
    sign = MessageClass(
        what=row["what"],
        kind="message",
        stops=row["stops"],
        action=row["action"],
        fault=row.get("fault", row["stops"] != "no"),
        source=row["source"],
    )
    hint = row["hint"]
    words = (hint,) if isinstance(hint, str) else tuple(hint)
    return _Pattern(words, re.compile(row["pattern"]), sign, row.get("gpu", False))


def hints() -> tuple[str, ...]:
    """Substrings of which every line with a meaning here has one."""
    return _tables().hints


def pci_address(text: str) -> str:
    """The address 0000:9b:00 for `00000000:9B:00.0` and `0000:9b:00`; other names stay as they are."""
    match = _PCI.fullmatch(text.lower())
    return ":".join(match.groups()) if match else text


def classify_message(text: str) -> KernelMessage | None:
    """The meaning of a message without its stamp; None where it has none here."""
    text = text[:MAX_TEXT]
    if "Xid (" in text:
        if match := _XID.search(text):
            return _xid(match)
        if match := _SXID.search(text):
            return _sxid(match, match["text"] or "")
    if match := _FABRIC.search(text):
        return _sxid(match, match["fatal"])
    for pattern in _tables().messages:
        if any(hint in text for hint in pattern.hints) and (
            match := pattern.expression.search(text)
        ):
            return _message(pattern, match)
    return None


@lru_cache(4096)
def tells_fault(signal: str) -> bool:
    """Whether a node's signal, its name and then its text, is of a fault: not a boot, nor a link that
    is up again. One of which nothing is known here is taken for a fault.
    """
    message = classify_message(signal)
    if message is not None:
        return message.sign.fault
    return not any(signal == name or signal.startswith(f"{name} ") for name in _tables().harmless)


def _message(pattern: _Pattern, match: re.Match[str]) -> KernelMessage:
    groups = match.groupdict()
    device = next((g for name, g in groups.items() if name != "who" and g), "")
    return KernelMessage(
        sign=pattern.sign,
        device=pci_address(device.rstrip(".:")),
        on_gpu=pattern.on_gpu,
        who=groups.get("who") or "",
    )


def _xid(match: re.Match[str]) -> KernelMessage:
    name = _NAME.search(match["text"] or "")
    device = pci_address(match["device"])
    if match["part"]:
        device += f" instance {match['part']}"
    who = name[1] if name and "unknown" not in name[1] else ""
    sign = classify_xid(int(match["code"]), match["text"] or "")
    return KernelMessage(sign=sign, device=device, on_gpu=True, who=who)


@lru_cache(maxsize=4096)
def _plain_xid(code: int) -> MessageClass:
    tables = _tables()
    row = tables.xids.get(code)
    if row is None:
        return MessageClass(
            what=f"xid {code}",
            kind="xid",
            code=code,
            meaning="not in the catalogue",
            stops="unknown",
            action="look it up in the driver's documentation",
            fault=True,
            source=tables.xid_source,
        )
    actions = [tables.buckets[row[key]] for key in ("now", "then") if row[key]]
    if actions[1:] and (actions[1] == actions[0] or row["then"] == "IGNORE"):
        actions = actions[:1]
    return MessageClass(
        what=f"xid {code}",
        kind="xid",
        code=code,
        meaning=row["what"],
        stops=row["stops"],
        action="; ".join(actions) or "not in the catalogue",
        fault=row["stops"] != "no",
        source=tables.xid_source,
    )


def classify_xid(code: int, text: str = "") -> MessageClass:
    """The meaning of an Xid: the catalogue's, or the message's where it says more than its code."""
    sign = _plain_xid(code)
    if code in _NVLINK5 and (match := _FATAL.search(text)):
        fatal = match[1].lower() == "fatal"
        return _with(sign, fatal, "drain the node, reset the GPU" if fatal else "ignore")
    if code == 154 and (match := _RECOVERY.search(text)):
        return MessageClass(
            what=sign.what,
            kind=sign.kind,
            code=code,
            meaning=sign.meaning,
            stops=sign.stops,
            action=f"the driver asks for: {match[1]}"[:SMALL],
            fault=False,
            source=sign.source,
        )
    return sign


def _with(sign: MessageClass, fatal: bool, action: str) -> MessageClass:
    return MessageClass(
        what=sign.what,
        kind=sign.kind,
        code=sign.code,
        meaning=sign.meaning,
        stops="yes" if fatal else "no",
        action=action,
        fault=fatal,
        source=sign.source,
    )


def _sxid(match: re.Match[str], severity_text: str) -> KernelMessage:
    groups = match.groupdict()
    device = f"nvswitch {pci_address(groups['device'])}" if groups["device"] else "nvswitch"
    if groups.get("port"):
        device += f" port {groups['port']}"
    severity = _FATAL.search(severity_text)
    return KernelMessage(
        sign=_sxid_sign(int(groups["code"]), severity[1].lower() if severity else ""), device=device
    )


@lru_cache(maxsize=4096)
def _sxid_sign(code: int, severity: str) -> MessageClass:
    tables = _tables()
    what, group = tables.sxids.get(code, ("not in the guide", {}))
    stops: Stops = group.get("stops") or {"fatal": "yes", "": "unknown"}.get(severity, "maybe")  # type: ignore[assignment]
    label = group.get("label", severity)
    return MessageClass(
        what=f"sxid {code}",
        kind="sxid",
        code=code,
        meaning=f"{what} ({label})" if label else what,
        stops=stops,
        action=group.get("action", "look it up in the fabric manager's guide"),
        fault=stops != "no",
        source=tables.sxid_source,
    )
