"""What pages ask for beside their content: the choices of forms, the front of a plan, its files."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI

from computeflow.catalog.parameters import count_parameters
from computeflow.cluster.machine import usual_cluster
from computeflow.errors import InputError
from computeflow.prediction.step_inputs import PEAKS
from computeflow.simulation.failures import failure_models
from computeflow.web.page_answers import SCHEMA, Content
from computeflow.web.pages.asking import WorkbenchDep
from computeflow.web.pages.plan import plan_file, plan_files, plan_front
from computeflow.web.workers.tasks.packaged_catalog import shared_catalog
from computeflow.workload.job import PRECISIONS

_A_NODE = 8


def add_computing(application: FastAPI, responses: dict[int | str, dict[str, Any]]) -> None:
    def add(address: str, function: Any, summary: str) -> None:
        application.add_api_route(
            address, function, response_model=None, responses=responses, summary=summary
        )

    add("/choices", choices, "What forms can choose from: models, devices, precisions.")
    add("/plan/front", plan_front, "Time against cost by number of GPUs.")
    add("/plan/files", plan_files, "The best plan as files.")
    add("/plan/file", plan_file, "One file of the best plan.")


def choices(bench: WorkbenchDep) -> Content:
    bench.start("quick")
    return _choices()


@cache
def _choices() -> Content:
    facts = shared_catalog()
    devices = []
    for device in facts.accelerators:
        try:
            usual_cluster(device.name, _A_NODE, facts)
        except InputError:  # no target of a training, or no network known
            continue
        devices.append(
            {
                "name": device.name,
                "vendor": device.vendor,
                "precisions": [
                    each for each in PRECISIONS if PEAKS.get(each, each) in device.dense_flops
                ],
                "announced": device.announced,
            }
        )
    models = [
        {
            "name": model.name,
            "family": model.family,
            "parameters": count_parameters(model).total if model.blocks else None,
            "context": model.context,
        }
        for model in facts.models
    ]
    return {
        "schema": SCHEMA,
        "title": "Choices",
        "models": models,
        "devices": devices,
        "precisions": list(PRECISIONS),
        "failures": list(failure_models()),
        "providers": sorted({row.provider for row in facts.offers}),
    }
