"""Files of the user: how much of one is read, how one is written, which names are taken from one."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Cache": "cache",
    "check_name": "names",
    "printable": "names",
    "read_text": "reading",
    "shown": "names",
    "write_file": "writing",
    "write_folder": "writing",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
