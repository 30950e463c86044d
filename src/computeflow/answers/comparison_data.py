"""A comparison as plain data for JSON."""

from __future__ import annotations

import math
from typing import Any

from computeflow import codec
from computeflow.comparison.advice import Advice
from computeflow.comparison.costs import TermCost
from computeflow.comparison.results import Comparison, Result
from computeflow.comparison.splits import Split


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    request = comparison.request
    return {
        "schema": "computeflow.comparison/1",
        "model": request.job.model.name,
        "tokens": request.tokens,
        "global_batch": request.job.global_batch,
        "seq_len": request.job.seq_len,
        "precision": request.job.precision,
        "deadline_seconds": request.deadline_seconds,
        "sure": request.sure,
        "budget_usd": request.budget_usd,
        "market": codec.encode(request.market),
        "replicas": request.replicas,
        "seed": request.seed,
        "today": request.today.isoformat(),
        "searches": comparison.searches,
        "meeting": len(comparison.meeting),
        "meeting_over_the_range": len(comparison.sure),
        "results": [_result_data(result) for result in comparison.results],
        "cheapest_over_the_range": None
        if comparison.safest is None
        else {
            "offer": comparison.safest[0].offering.name,
            "cost": cost_data(comparison.safest[1]),
        },
        "front": [result.offering.name for result in comparison.front],
        "nearest": None if comparison.nearest is None else comparison.nearest.offering.name,
        "refused": [{"offer": r.offering.name, "reason": r.reason} for r in comparison.refused],
    }


def _result_data(result: Result) -> dict[str, Any]:
    offering, prediction = result.offering, result.plan.prediction
    ledger, energy, terms = prediction.ledger, result.meter.energy, offering.terms
    p50, p90 = result.seconds
    return {
        "offer": offering.name,
        "provider": offering.provider,
        "instance": offering.instance,
        "region": offering.region,
        "country": offering.country,
        "accelerator": offering.accelerator,
        "gpus": result.gpus,
        "allocated_gpus": result.simulation.run.allocated_gpus,
        "layout": codec.encode(prediction.layout),
        "step_seconds": prediction.step_seconds,
        "mfu": ledger.mfu,
        "mfu_palm": ledger.mfu_palm,
        "goodput": codec.encode(result.simulation.goodput),
        "p50_seconds": p50,
        "p90_seconds": p90,
        "seconds_range": result.seconds_range,
        "meets": result.meets,
        "evidence": prediction.evidence.to_dict(),
        "best_term": None if result.best is None else result.best.term,
        "costs": [cost_data(cost) for cost in result.costs],
        "usd_per_million_tokens": result.usd_per_million_tokens,
        "joules": energy.joules,
        "grams_co2e": energy.grams,
        "energy_usd": energy.usd,
        "energy_by_account": {name: codec.encode(line) for name, line in energy.by_account.items()},
        "pue": energy.supply.pue,
        "gflops_per_watt": result.gflops_per_watt,
        "runs_per_week": result.runs_per_week,
        "network": offering.network,
        "network_known": offering.network_known,
        "access": offering.access,
        "orchestration": offering.orchestration,
        "site": codec.encode(offering.quality),
        "largest_gpus": offering.most_gpus,
        "limited_by": offering.limit or None,
        "lead": terms.lead or None if terms else None,
        "support": terms.support or None if terms else None,
        "availability": None,
        "notes": list(result.meter.notes),
    }


def advice_data(advice: Advice) -> dict[str, Any]:
    result, cost = advice.result, advice.cost
    return {
        "workload": advice.workload,
        "commodity": advice.commodity,
        "reason": advice.reason,
        "offer": None if result is None else result.offering.name,
        "cost": None if cost is None else cost_data(cost),
    }


def split_data(split: Split) -> dict[str, Any]:
    return {
        "runs": split.runs,
        "left": split.left,
        "usd": split.usd,
        "shares": [
            {
                "offer": share.result.offering.name,
                "term": share.cost.term,
                "runs": share.runs,
                "at_once": share.at_once,
                "usd": share.usd,
                "limit_known": share.limit_known,
            }
            for share in split.shares
        ],
    }


def cost_data(cost: TermCost) -> dict[str, Any]:
    run = cost.run
    return {
        "term": cost.term,
        "commitment": cost.commitment,
        "gpus": None if run is None else run.gpus,
        "usd_per_device_hour": cost.usd_per_device_hour,
        "usd": None if math.isinf(cost.usd) else cost.usd,
        "move_usd": cost.move_usd,
        "p50_seconds": cost.p50_seconds,
        "p90_seconds": cost.p90_seconds,
        "as_of": cost.as_of,
        "source": cost.source,
        "stale": cost.stale,
        "odd": cost.odd,
        "unstated": cost.unstated,
        "problem": cost.problem,
        "meets": cost.meets,
        "meets_over_the_range": cost.sure,
    }
