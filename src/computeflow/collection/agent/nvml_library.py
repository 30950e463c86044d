"""NVML as one call: `open_nvml`, the one place that imports nvidia-ml-py.

An answer is plain data (numbers, texts, lists, tables), so that it can be recorded and replayed
(`recorded_nvml`). What the driver does not give is an `NvmlMissingError` with its reason.
"""

from __future__ import annotations

from typing import Any, Protocol

NODE = -1
"""The number for questions that are of no one GPU."""
FIELDS = "nvmlDeviceGetFieldValues"


class NvmlMissingError(Exception):
    """The driver, or this GPU, does not give it; the text says why."""


class NvmlCalls(Protocol):
    def ask(self, gpu: int, function: str, *arguments: int) -> Any:
        """Call a function of NVML on a GPU; `NvmlMissingError` where it gives no value."""


class NvmlLibrary:
    """The driver of this machine."""

    def __init__(self, module: Any) -> None:
        self._nvml = module
        self._handles: dict[int, Any] = {}

    def ask(self, gpu: int, function: str, *arguments: int) -> Any:
        nvml = self._nvml
        call = getattr(nvml, function, None)
        if call is None:
            raise NvmlMissingError(f"this nvidia-ml-py has no {function}")
        try:
            if gpu == NODE:
                return _plain(call(*arguments))
            if gpu not in self._handles:
                self._handles[gpu] = nvml.nvmlDeviceGetHandleByIndex(gpu)
            if function == FIELDS:
                return self._fields(call(self._handles[gpu], list(arguments)))
            return _plain(call(self._handles[gpu], *arguments))
        except nvml.NVMLError as error:
            raise NvmlMissingError(str(error)) from None

    def _fields(self, answers: Any) -> dict[str, Any]:
        """Values by the number of their field; those that the GPU lacks are left out."""
        nvml = self._nvml
        kinds = {
            nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        }
        return {
            str(answer.fieldId): getattr(answer.value, kinds[answer.valueType])
            for answer in answers
            if answer.nvmlReturn == nvml.NVML_SUCCESS and answer.valueType in kinds
        }


def open_nvml() -> NvmlLibrary:
    """The driver of this machine; `NvmlMissingError` says what it lacks."""
    nvml = nvml_module()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlMissingError(f"an NVIDIA driver ({error})") from None
    return NvmlLibrary(nvml)


def nvml_module() -> Any:
    try:
        import pynvml
    except ImportError:
        raise NvmlMissingError("nvidia-ml-py: pip install nvidia-ml-py") from None
    return pynvml


def _plain(value: Any) -> Any:
    """Structures of C as tables, bytes as texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    fields = getattr(value, "_fields_", None)
    if fields:
        return {name: _plain(getattr(value, name)) for name, *_ in fields}
    if hasattr(value, "__dict__"):  # processes: an object with the values of a structure
        return {name: _plain(item) for name, item in vars(value).items()}
    return value if isinstance(value, int | float | str) or value is None else str(value)
