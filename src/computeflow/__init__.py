"""ComputeFlow: where every GPU-second, joule and dollar of training goes, and what to change.

    import computeflow as cf
    cf.predict("llama-3.1-70b", on="h100-sxm:512", global_batch=1024, seq_len=8192, tp=4, pp=4)

Every command is a function of its name; its long options are the keywords. The names below are
imported when they are first used, so that `import computeflow` costs nothing and a part that lives in a
training process pulls in nothing else.
"""

from typing import TYPE_CHECKING

from computeflow._lazy import lazy_exports
from computeflow.answers import __all__ as _answers

if TYPE_CHECKING:
    from computeflow.answers import *  # noqa: F403
    from computeflow.catalog import Catalog as Catalog
    from computeflow.catalog import find_model as find_model
    from computeflow.catalog import load_catalog as load_catalog
    from computeflow.ledger import Entry as Entry
    from computeflow.ledger import Finding as Finding
    from computeflow.ledger import Ledger as Ledger
    from computeflow.ledger import Window as Window
    from computeflow.ledger.gaps import gaps as gaps

__version__ = "0.1.0"

_EXPORTS = dict.fromkeys(_answers, "answers") | {
    "Catalog": "catalog",
    "Entry": "ledger",
    "Finding": "ledger",
    "Ledger": "ledger",
    "Window": "ledger",
    "find_model": "catalog",
    "gaps": "ledger",
    "load_catalog": "catalog",
}
__all__ = ["__version__", *_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
