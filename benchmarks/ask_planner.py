"""Ask another planner for step times, in its own process: one JSON object a line, in and out.

    python benchmarks/ask_planner.py {calculon,simumax} CHECKOUT < questions > answers

Needs the standard library and what the planner itself needs. A question has `inputs` and `changes` of
`benchmarks.planner_inputs.Question`; an answer has `seconds` and `cpu_seconds`, or `refused`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_SECONDS = 60
"""CPU-seconds that one answer may take."""
NODE = 8
Answer = Callable[[dict[str, Any], dict[str, Any]], float]


def calculon(checkout: Path) -> Answer:
    module = importlib.import_module("calculon")
    quiet = logging.getLogger("planner")
    quiet.setLevel(logging.CRITICAL)
    systems = {path.stem: path.read_text() for path in (checkout / "systems").glob("*.json")}

    def answer(inputs: dict[str, Any], changes: dict[str, Any]) -> float:
        fields = json.loads(systems[inputs["system"]])
        if changes.get("memory") == "unlimited":
            fields["mem1"]["GiB"] = fields["mem2"]["GiB"] = 1e9
        if changes.get("network_gbps"):
            fields["networks"][1]["bandwidth"] = changes["network_gbps"]
        system = module.System(fields)
        model = module.Llm(module.Llm.Application(inputs["application"]), quiet)
        model.compile(system, module.Llm.Execution.from_json(inputs["execution"]))
        model.run(system)
        return float(model.get_total_time())

    return answer


def simumax(checkout: Path) -> Answer:
    config = importlib.import_module("simumax.core.config")
    planner = importlib.import_module("simumax.core.perf_llm")
    systems = {
        path.stem: json.loads(path.read_text())
        for path in (checkout / "configs" / "system").glob("*.json")
    }
    template = _first_system((checkout / "docs" / "system.md").read_text())

    def answer(inputs: dict[str, Any], changes: dict[str, Any]) -> float:
        fields = copy.deepcopy(systems[inputs["system"]])
        if changes.get("nvlink"):
            between = fields["networks"]["inter_node"]
            fields["networks"] = copy.deepcopy(template["networks"]) | {"inter_node": between}
        if changes.get("network_gbps"):  # of a whole node there
            bandwidth = fields["networks"]["inter_node"]["bandwidth"]
            bandwidth["gbps"] = changes["network_gbps"] * NODE * 1e9 / 2**30
        model, strategy = inputs["model"], inputs["strategy"]
        perf = planner.PerfLLM()
        perf.configure(
            strategy_config=config.StrategyConfig.init_from_dict(strategy),
            model_config=config.ModelConfig.init_from_dict(model),
            system_config=config.SystemConfig.init_from_dict(fields),
        )
        perf.run_estimate()
        cost = perf.analysis_cost()
        rate = cost.get("throughput_per_accelerator") * strategy["world_size"]
        return float(cost.get("all_tokens_per_iter") / rate)

    return answer


def _first_system(page: str) -> dict[str, Any]:
    """The first whole machine that the planner's own page gives: its devices are joined by NVLink."""
    for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL):
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(block)
            if "networks" in found:
                return dict(found)
    raise SystemExit("docs/system.md of the checkout has no machine with networks")


PLANNERS = {"calculon": calculon, "simumax": simumax}


def _too_long(*_: object) -> None:
    raise TimeoutError(f"no answer within {MAX_SECONDS} CPU-seconds")


def ask(answer: Answer, question: dict[str, Any]) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            seconds = answer(question["inputs"], question["changes"])
    except Exception as error:  # whatever it raises is its refusal
        return {"refused": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"seconds": seconds, "cpu_seconds": time.process_time() - began}


def main() -> int:
    name, checkout = sys.argv[1], Path(sys.argv[2]).resolve()
    sys.path.insert(0, str(checkout))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _too_long)
    lines = sys.stdin.read().splitlines()
    with tempfile.TemporaryDirectory() as folder:  # what a planner leaves in its working folder
        os.chdir(folder)
        answer = PLANNERS[name](checkout)
        for line in lines:
            print(json.dumps(ask(answer, json.loads(line))), flush=True)
        os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
