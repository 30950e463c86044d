"""Run folders: what `computeflow record` keeps of a run, read back.

Start with `RunFolders`; `rank_file.read_rank_file` reads the file of one rank.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {"RunFolders": "run_folder_source"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
