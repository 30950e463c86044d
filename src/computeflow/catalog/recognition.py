"""Which accelerator of the catalog a price list means: by family, memory and form.

"A100", "A100-80G-PCIe-NVLink" and "NVIDIA H100 80GB HBM3" are what lists write; the catalog tells
40 from 80 GB and SXM from PCIe and NVL. What the name leaves open is looked for in the instance's
type and in what else the list says. Nothing is guessed: an unknown family is an error, memory that
nobody states is an error. Where only the form is open, the SXM row is taken with that doubt; but a
list that writes "sxm" beside some of a family means something else by the bare name, and says not
what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from computeflow.catalog.config import short
from computeflow.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from computeflow.catalog.loading import CatalogTable
    from computeflow.catalog.rows import Accelerator

    Forms = list[tuple[Accelerator, str]]
    """Accelerators of one family, each with its form."""

# Types that fix the device although the list does not say its memory or form, by source.
_INSTANCES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        # docs.aws.amazon.com/ec2/latest/instancetypes/ac.html
        (r"p4d\.", "a100-40-sxm"),
        (r"p4de\.", "a100-80-sxm"),
        (r"p5\.", "h100-sxm"),
        # learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated: ND A100 v4, NDm A100 v4,
        # NC A100 v4, NCads H100 v5, ND H100 v5
        (r"(standard_)?nd96asr_(a100_)?v4", "a100-40-sxm"),
        (r"(standard_)?nd96amsr_a100_v4", "a100-80-sxm"),
        (r"(standard_)?nc\d+ads_a100_v4", "a100-80-pcie"),
        (r"(standard_)?ncc?\d+adi?s_h100_v5", "h100-nvl"),
        (r"(standard_)?nd96isr_h100_v5", "h100-sxm"),
        # docs.cloud.google.com/compute/docs/accelerator-optimized-machines
        (r"a2-(high|mega)gpu-", "a100-40-sxm"),
        (r"a2-ultragpu-", "a100-80-sxm"),
        (r"a3-(high|mega|edge)gpu-", "h100-sxm"),
        # lambda.ai/instances: "8x NVIDIA A100 SXM 40 GB", 124 vCPU, 1,800 GiB (a reseller writes it
        # lambdalabs_A100x8); smaller ones of that name are PCIe.
        (r"gpu_[124]x_a100$", "a100-40-pcie"),
        (r"gpu_8x_a100$", "a100-40-sxm"),
        (r"lambdalabs_a100x8$", "a100-40-sxm"),
        # docs.oracle.com/en-us/iaas/Content/Compute/References/computeshapes.htm
        (r"bm\.gpu4\.8", "a100-40-sxm"),
        (r"bm\.gpu\.a100-v2\.8", "a100-80-sxm"),
        (r"bm\.gpu\.h100\.8", "h100-sxm"),
        # crusoe.ai/cloud/pricing: "A100 80GB PCIe" beside "A100 80GB SXM", whose type says sxm
        (r"a100\.\d+x", "a100-40-pcie"),
        (r"a100-80gb\.\d+x", "a100-80-pcie"),
        (r"crusoe_a100-80gb(x\d+)?$", "a100-80-pcie"),
        # hyperstack.cloud/gpu-pricing: "A100" and "H100" are PCIe cards, "SXM" is written out
        (r"hyperstack_a100-80gb(x\d+)?$", "a100-80-pcie"),
        (r"n3-a100x", "a100-80-pcie"),
        (r"n3-h100x", "h100-pcie"),
        # SkyPilot catalog scaleway/vms.csv: H100-1-80G and H100-2-80G are "NVIDIA H100 PCIe"
        (r"scaleway_h100(x2)?$", "h100-pcie"),
        # verda.com/pricing (DataCrunch): A100 SXM4 and H100 SXM5
        (r"\d+a100\.\d+v", "a100-80-sxm"),
        (r"\d+a100\.40s\.", "a100-40-sxm"),
        (r"\d+h100\.80s\.", "h100-sxm"),
    )
)
_SPELLINGS = {"trainium": "trainium1", "tpuv5litepod": "tpuv5e", "h100mega": "h100"}
_SILENT = frozenset((
    "nvidia", "amd", "intel", "habana", "google", "aws", "cloud", "tesla", "geforce", "instinct",
    "gpu", "tensor", "core", "nvlink", "nvl72", "hgx", "oam", "hbm2e", "hbm3", "hbm3e",
))  # fmt: skip
_TOKENS = re.compile(r"[a-z]+[a-z0-9]*|\d+[a-z]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A device as a price list describes it."""

    device: str
    count: int
    instance: str = ""
    upstream: str = ""
    """The type's name at the cloud that a reseller sells on."""
    info: str = ""
    """SkyPilot's GpuInfo: name and memory, as a Python or JSON literal."""


class Recogniser:
    """`listed` is every device of the list with what stands beside it: it shows how one writes."""

    def __init__(
        self, accelerators: CatalogTable[Accelerator], listed: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._accelerators = accelerators
        self._names = frozenset(accelerators.names)
        self._written_sxm = {
            _parts(device)[0]
            for device, beside in listed
            if _form(device) == "sxm" or _form(beside) == "sxm"
        }
        self._families: dict[str, Forms] = {}
        for row in accelerators:
            family, form, _ = _parts(row.name)
            self._families.setdefault(family, []).append((row, form))

    def recognise(self, mention: Mention) -> tuple[str, str]:
        """The accelerator's name, and what is in doubt about it ("" if nothing is)."""
        if mention.device in self._names:
            return mention.device, ""
        if name := self._by_instance(mention):
            return name, ""
        family = _parts(mention.device)[0]
        kin = self._families.get(family, [])
        if not kin and mention.device in self._accelerators:
            return self._accelerators[mention.device].name, ""
        form, gigabytes = _stated(mention, family, kin)
        fits = [(row, own) for row, own in kin if _fits(row, own, form, gigabytes)]
        if not fits:
            clear = not kin or form in mention.device.casefold()
            device = short(mention.device if clear else f"{mention.device} {form}")
            raise UnknownNameError("accelerator", device, self._accelerators.names)
        return (fits[0][0].name, "") if len(fits) == 1 else self._sxm(mention, family, kin, fits)

    def _by_instance(self, mention: Mention) -> str:
        for text in (mention.instance, mention.upstream):
            for pattern, name in _INSTANCES:
                if pattern.match(text.casefold()) and name in self._accelerators:
                    return name
        return ""

    def _sxm(self, mention: Mention, family: str, kin: Forms, fits: Forms) -> tuple[str, str]:
        """The SXM row where only the form is open, and the list does not write it elsewhere."""
        sxm = [row.name for row, own in fits if own == "sxm"]
        if len(sxm) == 1 and family not in self._written_sxm:
            return sxm[0], "form not stated"
        why = "memory not stated"
        if len(sxm) == 1:
            why = "form not stated, and the list writes SXM elsewhere"
        choices = ", ".join(row.name for row, _ in kin)
        raise InputError(f"accelerator '{short(mention.device)}': {why}; write one of {choices}")


def _parts(text: str) -> tuple[str, str, float | None]:
    """Family, form and gigabytes: "A100-80G-PCIe" is ("a100", "pcie", 80)."""
    family, gigabytes = "", None
    for token in _TOKENS.findall(text.casefold()):
        number = re.fullmatch(r"(\d+)(gb?)?", token)
        if number and (number[2] or any(c.isdigit() for c in family)):
            gigabytes = float(number[1])
        elif token not in _SILENT and not re.fullmatch(r"sxm\d?|pcie|nvl", token):
            family += token
    return _SPELLINGS.get(family, family), _form(text), gigabytes


def _form(text: str) -> str:
    text = text.casefold()
    if "pcie" in text:
        return "pcie"
    if re.search(r"nvl(?!ink|\d)", text):
        return "nvl"
    # "H100 80GB HBM3" is the driver's name of the SXM part; the PCIe card has HBM2e.
    return "sxm" if re.search(r"sxm|hgx|80gb.hbm3", text) else ""


def _memory(mention: Mention, family: str, kin: Forms) -> float | None:
    """Gigabytes of one device from the instance's name, else from GpuInfo.

    GpuInfo holds MiB of one device, or of all of them, or gigabytes, depending on the cloud.
    """
    for text in (mention.instance, mention.upstream):
        named = re.search(rf"{re.escape(family)}[-_ ]?(\d+)\s?gb?(?![a-z])", text.casefold())
        if named:
            return float(named[1])
    sizes = re.findall(r"(?:SizeInMiB|TotalGpuMemoryInMiB)\W+(\d{1,9})\b", mention.info)
    if not sizes:
        return None
    size = float(sizes[0]) / (1 if float(sizes[0]) < 1000 else 1024)
    of_all = sizes[:1] == sizes[1:2]
    readings = (size / mention.count, size) if of_all else (size, size / mention.count)
    return next((gb for gb in readings if any(_same_memory(row, gb) for row, _ in kin)), size)


def _stated(mention: Mention, family: str, kin: Forms) -> tuple[str, float | None]:
    """Form and memory by the device's own name, else by what stands beside it."""
    _, form, gigabytes = _parts(mention.device)
    form = form or _form(f"{mention.info} {mention.upstream} {mention.instance}")
    return form, (gigabytes or _memory(mention, family, kin)) if len(kin) > 1 else None


def _fits(row: Accelerator, own: str, form: str, gigabytes: float | None) -> bool:
    return (not form or own in ("", form)) and _same_memory(row, gigabytes)


def _same_memory(row: Accelerator, gigabytes: float | None) -> bool:
    return gigabytes is None or abs(row.hbm_bytes / 1e9 - gigabytes) < 0.06 * gigabytes
