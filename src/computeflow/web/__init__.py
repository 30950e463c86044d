"""The page: the answers of the library over HTTP, as JSON and as one page that shows them.

`serve` is the command's function, `application.PageServer` what it serves. `access` is the door,
`sources` what pages are about, `workers` what takes long, `pages` what each page answers, `static`
what the browser runs.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {"ServeAnswer": "page_server", "serve": "page_server"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
