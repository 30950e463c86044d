"""FLOPs of a run's step, where the recorder saw the shapes of its model: `model_work`."""

from __future__ import annotations

from computeflow.catalog.huggingface import model_from_config
from computeflow.catalog.parameters import count_parameters
from computeflow.errors import ComputeFlowError
from computeflow.telemetry.run_folders.rank_file import RankFile
from computeflow.telemetry.source_reports import ModelWork
from computeflow.workload import flops_per_token

_SAME = 0.02
"""Relative difference of the parameters up to which the shapes are those of the model: embeddings may
be tied, positions counted or not."""
_ANY_DATE = "2000-01-01"


def model_work(file: RankFile, tokens: float | None, samples: float | None) -> ModelWork | None:
    """FLOPs of a step of all ranks; None where shapes, tokens or samples are not recorded, or where the
    shapes give another number of parameters than the model has (a part of it, adapters).
    """
    if not file.config or not tokens or not samples or not file.parameters:
        return None
    try:
        model = model_from_config(file.config, "recorded", _ANY_DATE)
        counted = count_parameters(model).total
        if abs(counted / file.parameters - 1) > _SAME:
            return None
        each = flops_per_token(model, max(round(tokens / samples), 1))
    except (ComputeFlowError, ArithmeticError):
        return None
    return ModelWork(flops_per_step=tokens * each.total, full_flops_per_step=tokens * each.palm)
