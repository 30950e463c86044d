"""A plan as the files that frameworks and launchers take, and such files back into a layout."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Exported": "config_writer",
    "FrameworkSpace": "framework_space",
    "ConfigReading": "config_formats",
    "Setup": "config_formats",
    "export": "config_writer",
    "read_file": "config_reader",
    "setup_of": "config_reader",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
