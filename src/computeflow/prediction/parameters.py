"""The predictor's numbers, as data with what they mean; `parameters.toml` beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import UnknownNameError
from computeflow.files.parsing import parse_toml
from computeflow.files.reading import read_text

PACKAGED = Path(__file__).with_name("parameters.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Values by name, each with its prior and how firm that is (standard deviation of its ln)."""

    names: tuple[str, ...]
    values: NDArray[np.float64]
    priors: NDArray[np.float64]
    deviations: NDArray[np.float64]

    def __getitem__(self, name: str) -> float:
        try:
            return float(self.values[self.names.index(name)])
        except ValueError:
            raise UnknownNameError("parameter", name, self.names) from None

    def with_values(self, values: NDArray[np.float64]) -> Parameters:
        return Parameters(
            names=self.names, values=values, priors=self.priors, deviations=self.deviations
        )

    def replaced(self, values: Mapping[str, float]) -> Parameters:
        """With some values by name."""
        changed = self.values.copy()
        for name, value in values.items():
            if name not in self.names:
                raise UnknownNameError("parameter", name, self.names)
            changed[self.names.index(name)] = value
        return self.with_values(changed)


@cache
def load_parameters(path: Path = PACKAGED) -> Parameters:
    rows = parse_toml(read_text(path), str(path))["parameters"]
    priors = np.array([row["prior"] for row in rows.values()], np.float64)
    return Parameters(
        names=tuple(rows),
        values=np.array([row.get("value", row["prior"]) for row in rows.values()], np.float64),
        priors=priors,
        deviations=np.array([row["sd"] for row in rows.values()], np.float64),
    )
