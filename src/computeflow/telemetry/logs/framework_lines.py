"""Formats of the frameworks' log lines, each after its project's public source.

`Parser.event` gives the first event of a line. A table of substrings keeps the many lines without an
event cheap. Sources, with the commits read, are listed in docs/sources/logs.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from computeflow.telemetry.logs import failure_lines, mlperf_lines
from computeflow.telemetry.logs.line_events import (
    Checkpoint,
    Evaluation,
    Event,
    Finished,
    Launch,
    SettingLine,
    StepLine,
    finite,
)
from computeflow.telemetry.logs.progress_bars import progress
from computeflow.telemetry.logs.timers import TimerLines

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf)"
_SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def number(text: str | None) -> float | None:
    """A number as logs write them, "1.05M" and "12,345" too; None for anything else."""
    if not text:
        return None
    text = text.strip().rstrip("%").replace(",", "")
    size = 1.0
    if text and text[-1] in _SIZES:
        text, size = text[:-1], _SIZES[text[-1]]
    try:
        return float(text) * size
    except ValueError:
        return None


def whole(text: str | None) -> int | None:
    value = number(text)
    if value is None or not math.isfinite(value) or abs(value) > 1e15:
        return None
    return int(value)


def _bars(text: str) -> dict[str, str]:
    """The fields of "a: 1 | b: 2 |"."""
    parts = (part.rpartition(":") for part in text.split("|"))
    return {name.strip(): value.strip() for name, colon, value in parts if colon}


def _first_of(fields: Mapping[str, str], *names: str) -> str | None:
    return next((fields[name] for name in names if fields.get(name)), None)


def _seconds(fields: Mapping[str, str], *names: str) -> float | None:
    """Seconds of a field that is in milliseconds."""
    value = number(_first_of(fields, *names))
    return None if value is None else value / 1e3


# Megatron-LM, Megatron-DeepSpeed and their forks: training_log in megatron/training/training.py.
_ITERATION = re.compile(r"iteration\s+(\d{1,15})/\s*(\d{1,15}) \|(.*)")
_ARGUMENT = re.compile(r"\s{0,4}(\w+) \.{2,} (\S.*)")
_SETTINGS = {
    "world_size": "world_size", "data_parallel_size": "dp", "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp", "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep", "moe_expert_parallel_size": "ep",
    "global_batch_size": "batch", "seq_length": "sequence", "log_interval": "log_interval",
    "save": "save", "num_layers": "layers", "hidden_size": "hidden", "train_iters": "total",
    "params_dtype": "dtype", "fp8": "fp8",
}  # fmt: skip
_WORLD = re.compile(r"using world size: (\d{1,15}), (.*)")
_SIZED = re.compile(
    r"(data|tensor-model|pipeline-model|context|expert-model)-parallel[ -]size: (\d{1,15})"
)
_SHORT = {
    "data": "dp",
    "tensor-model": "tp",
    "pipeline-model": "pp",
    "context": "cp",
    "expert-model": "ep",
}


def _megatron_step(text: str) -> Event | None:
    match = _ITERATION.search(text)
    if match is None:
        return None
    fields = _bars(match[3])
    losses = (value for name, value in fields.items() if "loss" in name and "scale" not in name)
    return StepLine(
        iteration=int(match[1]),
        total=int(match[2]),
        seconds=_seconds(fields, "elapsed time per iteration (ms)"),
        loss=number(next(losses, None)),
        batch=whole(fields.get("global batch size")),
        sequence=whole(_first_of(fields, "actual seqlen", "curriculum seqlen")),
        gpu_tokens_per_second=number(fields.get("tokens per gpu per second (tgs)")),
        gpu_tflops=number(_first_of(fields, "throughput per GPU (TFLOP/s/GPU)", "TFLOPs")),
        nans=whole(fields.get("number of nan iterations")) or 0,
        skipped=whole(fields.get("number of skipped iterations")) or 0,
    )


def _megatron_argument(text: str) -> Event | None:
    match = _ARGUMENT.match(text)
    name = _SETTINGS.get(match[1]) if match else None
    if not match or name is None or match[2].rstrip() == "None":
        return None
    return SettingLine(values={name: match[2].rstrip()})


def _megatron_world(text: str) -> Event | None:
    match = _WORLD.search(text)
    if match is None:
        return None
    values = {_SHORT[kind]: size for kind, size in _SIZED.findall(match[2])}
    return SettingLine(
        values={"world_size": match[1], "framework": "Megatron", **values}, launch=True
    )


def _datetime(text: str) -> Event | None:
    if "[before the start of training step]" in text:
        return Launch(begins=True)
    if "[after training is done]" in text:
        return Finished()
    return Finished(whole=False) if "exiting program" in text else None


_VALIDATION = re.compile(
    r"validation(?:-\S{1,80})? loss at (?:iteration (\d{1,15}))?.{0,200}?value: (\S+)"
)
_SAVING = re.compile(r"saving checkpoint\s+at iteration\s+(\d{1,15})")
_SAVED = re.compile(
    r"successfully\s+saved (?:local )?checkpoint (?:from|at) iteration\s+(\d{1,15})"
)
_LOADED = re.compile(r"successfully loaded checkpoint from .{0,500}?at iteration (\d{1,15})")
_LOADING = re.compile(
    r"loading (?:distributed |release )?checkpoint from\b(?:.* at iteration (\d{1,15}))?"
)


def _validation(text: str) -> Event | None:
    match = _VALIDATION.search(text)
    if match is None:
        return None
    return Evaluation(phase="end", iteration=whole(match[1]), loss=number(match[2]))


def _checkpoint(text: str) -> Event | None:
    for pattern, phase in (
        (_SAVING, "saving"),
        (_SAVED, "saved"),
        (_LOADED, "loaded"),
        (_LOADING, "loading"),
    ):
        if match := pattern.search(text):
            return Checkpoint(phase=phase, iteration=whole(match[1]))  # type: ignore[arg-type]
    return None


# DeepSpeed: PipelineEngine.train_batch, DeepSpeedEngine._report_progress, launcher/launch.py.
_PIPE = re.compile(
    r"steps: (\d{1,15}) loss: (\S{1,40}) .{0,200}?iter time \(s\): ([\d.]+) samples/sec: ([\d.]+)"
)
_ENGINE = re.compile(r"\] step=(\d{1,15}), skipped=(\d{1,15}), lr=")
_DIST = re.compile(r"dist_world_size=(\d{1,15})")


def _deepspeed_pipe(text: str) -> Event | None:
    match = _PIPE.search(text)
    if match is None:
        return None
    seconds, rate = number(match[3]), number(match[4])
    samples = seconds * rate if seconds and rate else 0.0
    batch = round(samples) if samples < 1e15 else 0
    return StepLine(
        iteration=int(match[1]), loss=number(match[2]), seconds=seconds, batch=batch or None
    )


def _deepspeed_engine(text: str) -> Event | None:
    match = _ENGINE.search(text)
    return StepLine(iteration=int(match[1]), weak=True) if match and match[1] != "0" else None


def _deepspeed_world(text: str) -> Event | None:
    match = _DIST.search(text)
    return SettingLine(values={"world_size": match[1]}, launch=True) if match else None


# torchtitan: components/metrics.py, components/checkpointer, distributed/parallel_dims.py.
_TITAN = re.compile(
    rf"(?P<val>validate )?step:\s*(?P<step>[\d,]+)\s+loss:\s*(?P<loss>{_NUMBER})\s"
    rf"(?:.*?(?:tps|wps): (?P<tps>[\d,]+))?(?:.*?tflops: (?P<tflops>[\d,.]+))?"
    rf"(?:.*?mfu: (?P<mfu>[\d.]+)%)?"
)
_MESH = re.compile(r"Building device mesh with parallelism: (.*)")
_OLD_MESH = re.compile(r"Building \d-D device mesh with \[([^\]]{0,200})\], \[([\d, ]{1,200})\]")
_STARTS = re.compile(r"Training starts at step (\d{1,15})")
_SPENT = re.compile(
    r"Finished (saving|staging|loading) the checkpoint.{0,200}?in ([\d.]{1,20}) seconds"
)
_LAST = re.compile(r"Last step checkpoint completed in ([\d.]+)s")
_TITAN_BATCH = re.compile(r"global batch size (\d{1,15}).{0,200}?sequence length (\d{1,15})")


def _titan_step(text: str) -> Event | None:
    match = _TITAN.search(text)
    if match is None or "memory:" not in text:
        return None
    iteration, loss = whole(match["step"]) or 0, number(match["loss"])
    loss = None if loss == -1 else loss  # only the last pipeline stage knows it
    if match["val"]:
        return Evaluation(phase="end", iteration=iteration, loss=loss)
    mfu = number(match["mfu"])
    return StepLine(
        iteration=iteration,
        loss=loss,
        gpu_tokens_per_second=number(match["tps"]),
        gpu_tflops=number(match["tflops"]),
        mfu=None if mfu is None else mfu / 100,
    )


def _titan_mesh(text: str) -> Event | None:
    if match := _OLD_MESH.search(text):
        names = [name.strip(" '\"") for name in match[1].split(",")]
        sizes = dict(zip(names, match[2].split(","), strict=False))
    elif match := _MESH.search(text):
        sizes = dict(part.strip().split("=", 1) for part in match[1].split(",") if "=" in part)
    else:
        return None
    values = {name: size.strip() for name, size in sizes.items() if size.strip().isdigit()}
    world = math.prod(int(size) for size in (values | {"ep": "1"}).values())
    return SettingLine(values={**values, "world_size": str(world), "framework": "torchtitan"})


def _titan_starts(text: str) -> Event | None:
    match = _STARTS.search(text)
    return Launch(after=int(match[1]) - 1, begins=True) if match else None


def _titan_checkpoint(text: str) -> Event | None:
    if match := _SPENT.search(text):
        phase = "loaded" if match[1] == "loading" else "saved"
        return Checkpoint(phase=phase, seconds=finite(number(match[2])))  # type: ignore[arg-type]
    if match := _LAST.search(text):
        return Checkpoint(phase="saved", seconds=finite(number(match[1])))
    loading = "Loading the checkpoint" in text
    if loading or "Saving the checkpoint" in text or "Staging the checkpoint" in text:
        return Checkpoint(phase="loading" if loading else "saving")
    return None


def _titan_batch(text: str) -> Event | None:
    match = _TITAN_BATCH.search(text)
    return SettingLine(values={"batch": match[1], "sequence": match[2]}) if match else None


# nanotron: trainer.py, logging/base.py.
_NANOTRON = re.compile(r"iteration: (\d{1,15}) / (\d{1,15}) \|(.*)")
_NANO_START = re.compile(r"start_iteration_step: (\d{1,15})")
_NANO_SAVING = re.compile(r"Saving checkpoint at \S*?(\d{1,15})/?$")


def _nanotron_step(text: str) -> Event | None:
    match = _NANOTRON.search(text)
    if match is None:
        return None
    fields = _bars(match[3])
    return StepLine(
        iteration=int(match[1]),
        total=int(match[2]),
        seconds=_seconds(fields, "time_per_iteration_ms", "elapsed_time_per_iteration_ms"),
        loss=number(fields.get("lm_loss")),
        tokens_per_second=number(fields.get("tokens_per_sec")),
        gpu_tokens_per_second=number(fields.get("tokens_per_sec_per_gpu")),
        gpu_tflops=number(fields.get("model_tflops_per_gpu")),
    )


def _nanotron_start(text: str) -> Event | None:
    match = _NANO_START.search(text)
    return Launch(after=int(match[1])) if match else None


def _nanotron_saving(text: str) -> Event | None:
    match = _NANO_SAVING.search(text)
    return Checkpoint(phase="saving", iteration=whole(match[1])) if match else None


# NeMo 2 on Lightning: lightning/pytorch/callbacks/progress_printer.py.
_NEMO = re.compile(r"Training epoch \d+, iteration (\d{1,15})/(\d{1,15}) \|(.*)")


def _nemo_step(text: str) -> Event | None:
    match = _NEMO.search(text)
    if match is None:
        return None
    fields = _bars(match[3])
    global_step = whole(fields.get("global_step"))
    return StepLine(
        iteration=int(match[1]) if global_step is None else global_step,
        total=int(match[2]) + 1,
        seconds=number(fields.get("train_step_timing in s")),
        loss=number(fields.get("reduced_train_loss")),
        batch=whole(fields.get("global_batch_size")),
        gpu_tflops=number(fields.get("TFLOPS_per_GPU")),
        from_zero=True,
    )


# MaxText: common/metric_logger.py, common/checkpointing.py, and Orbax below it.
_MAXTEXT = re.compile(rf"completed step: (\d{{1,15}})(?:, seconds: ({_NUMBER}))?(.*)")
_DEVICES = re.compile(r"Num_devices: (\d{1,15})")
_MAX_SAVED = re.compile(
    r"(Started an asynchronous checkpoint save for|Saved a checkpoint at) step (\d{1,15})"
)
_MAX_EVAL = re.compile(r"(Starting|Completed) eval after train step (\d{1,15})(?:, loss=(\S+),)?")
_MAX_LOAD = re.compile(r"restoring from this run's directory step (\d{1,15})")
_ORBAX = re.compile(r"write/blocking_gbytes_per_sec: .{0,200}?time elapsed: ([\d.]{1,20}) s")


def _maxtext_step(text: str) -> Event | None:
    match = _MAXTEXT.search(text)
    if match is None or not match[3].startswith(","):
        return None
    fields = dict(part.strip().partition(": ")[::2] for part in match[3].split(","))
    return StepLine(
        iteration=int(match[1]),
        seconds=number(match[2]),
        loss=number(fields.get("loss")),
        gpu_tflops=number(fields.get("TFLOP/s/device")),
        gpu_tokens_per_second=number(fields.get("Tokens/s/device")),
        from_zero=True,
    )


def _maxtext_world(text: str) -> Event | None:
    match = _DEVICES.search(text)
    values = {"world_size": match[1], "framework": "MaxText"} if match else {}
    return SettingLine(values=values, launch=True) if match else None


def _maxtext_checkpoint(text: str) -> Event | None:
    if match := _MAX_SAVED.search(text):
        blocking = match[1].startswith("Saved")
        return Checkpoint(phase="saved", iteration=int(match[2]), blocking=blocking)
    if match := _MAX_LOAD.search(text):
        return Checkpoint(phase="loaded", iteration=int(match[1]))
    match = _ORBAX.search(text)
    return Checkpoint(phase="saved", seconds=finite(number(match[1]))) if match else None


def _maxtext_eval(text: str) -> Event | None:
    match = _MAX_EVAL.search(text)
    if match is None:
        return None
    phase = "start" if match[1] == "Starting" else "end"
    return Evaluation(phase=phase, iteration=int(match[2]), loss=number(match[3]))  # type: ignore[arg-type]


_ELASTIC = re.compile(r"Elastic attempt \d{1,9} out of")


def _elastic(text: str) -> Event | None:
    return Launch() if _ELASTIC.search(text) else None


# nanoGPT: train.py; the time is that of the one iteration that is logged.
_NANOGPT = re.compile(
    rf"iter (\d{{1,15}}): loss ({_NUMBER}), time ({_NUMBER})ms(?:, mfu (-?[\d.]{{1,20}})%)?"
)
_NANOGPT_EVAL = re.compile(rf"step (\d{{1,15}}): train loss {_NUMBER}, val loss ({_NUMBER})")


def _nanogpt_step(text: str) -> Event | None:
    match = _NANOGPT.match(text)
    if match is None:
        return None
    milliseconds, mfu = number(match[3]), number(match[4])
    return StepLine(
        iteration=int(match[1]),
        loss=number(match[2]),
        seconds=None if milliseconds is None else milliseconds / 1e3,
        mfu=None if mfu is None or mfu < 0 else mfu / 100,
        from_zero=True,
    )


def _nanogpt_eval(text: str) -> Event | None:
    match = _NANOGPT_EVAL.match(text)
    if match is None:
        return None
    return Evaluation(phase="end", iteration=int(match[1]), loss=number(match[2]))


# Hugging Face Trainer: trainer.py, trainer_callback.py.
_DICT = re.compile(r"\{'\w{1,100}': [^{}]*\}")
_PAIR = re.compile(r"'(\w+)': '?([^,'}]+)'?")
_HF = {
    "Total train batch size (w. parallel, distributed & accumulation) =": "batch",
    "Instantaneous batch size per device =": "device_batch",
    "Gradient Accumulation steps =": "accumulation",
    "Total optimization steps =": "total",
}
_HF_SAVING = re.compile(r"Saving model checkpoint to .*?(?:checkpoint-(\d{1,15}))?/?$")


def _hf_dict(text: str) -> Event | None:
    record = next((match[0] for match in _DICT.finditer(text) if "'epoch': " in match[0]), "")
    fields = dict(_PAIR.findall(record))
    if "train_runtime" in fields and "train_loss" in fields:
        seconds, rate = (
            number(fields["train_runtime"]),
            number(fields.get("train_steps_per_second")),
        )
        steps = seconds * rate if seconds and rate else 0.0
        return Finished(seconds=seconds, steps=round(steps) if 0 < steps < 1e15 else None)
    if any(name.startswith("eval_") for name in fields):
        seconds = number(fields.get("eval_runtime"))
        return Evaluation(phase="end", loss=number(fields.get("eval_loss")), seconds=seconds)
    if "loss" in fields:
        return StepLine(iteration=-1, loss=number(fields["loss"]))
    return None


def _hf_setting(text: str) -> Event | None:
    for label, name in _HF.items():
        if label in text:
            value = whole(text.rpartition("=")[2])
            return None if value is None else SettingLine(values={name: str(value)})
    return None


def _hf_running(text: str) -> Event | None:
    if "***** Running training *****" in text:
        return Launch(begins=True)
    return Evaluation(phase="start") if "***** Running Evaluation *****" in text else None


def _hf_saving(text: str) -> Event | None:
    match = _HF_SAVING.search(text)
    return Checkpoint(phase="saving", iteration=whole(match[1])) if match else None


def _launch(_: str) -> Event:
    return Launch()


def _finished(_: str) -> Event:
    return Finished()


Reader = Callable[[str], Event | None]
_READERS: tuple[tuple[str, Reader], ...] = (
    ("elapsed time per iteration (ms)", _megatron_step),
    ("time_per_iteration_ms:", _nanotron_step),
    ("train_step_timing in s:", _nemo_step),
    ("completed step:", _maxtext_step),
    ("loss: ", _titan_step),
    ("iter time (s):", _deepspeed_pipe),
    (", skipped=", _deepspeed_engine),
    ("'epoch': ", _hf_dict),
    ("iter ", _nanogpt_step),
    (", val loss ", _nanogpt_eval),
    ("it/s", progress),
    ("s/it", progress),
    (" loss at ", _validation),
    (" checkpoint ", _checkpoint),
    (" the checkpoint", _titan_checkpoint),
    ("step checkpoint completed", _titan_checkpoint),
    (" ....", _megatron_argument),
    ("using world size:", _megatron_world),
    ("--- arguments ---", _launch),
    ("datetime: ", _datetime),
    ("dist_world_size=", _deepspeed_world),
    ("device mesh with", _titan_mesh),
    ("Training starts at step", _titan_starts),
    ("Trainer is initialized with", _titan_batch),
    ("Training completed", _finished),
    ("start_iteration_step:", _nanotron_start),
    ("Saving checkpoint at", _nanotron_saving),
    ("Num_devices:", _maxtext_world),
    ("checkpoint save for step", _maxtext_checkpoint),
    ("a checkpoint at step", _maxtext_checkpoint),
    ("blocking_gbytes_per_sec", _maxtext_checkpoint),
    ("restoring from this run", _maxtext_checkpoint),
    (" eval after train step", _maxtext_eval),
    ("Elastic attempt", _elastic),
    ("***** Running", _hf_running),
    (" = ", _hf_setting),
    ("Saving model checkpoint to", _hf_saving),
)
_FRAMEWORK: dict[Reader, str] = {
    _megatron_step: "Megatron", _nanotron_step: "nanotron", _nemo_step: "NeMo",
    _maxtext_step: "MaxText", _titan_step: "torchtitan", _deepspeed_pipe: "DeepSpeed",
    _deepspeed_engine: "DeepSpeed", _hf_dict: "Hugging Face Trainer", _nanogpt_step: "nanoGPT",
}  # fmt: skip


class Parser:
    """Events of one file's lines; remembers only what a line needs of earlier ones."""

    def __init__(self) -> None:
        self.framework = ""
        self._timers = TimerLines()
        self._failures = failure_lines.FailureLines()
        self._mllog = mlperf_lines.MlperfLines()

    def event(self, text: str, stream: str) -> Event | None:
        if ":::MLLOG" in text:
            self.framework = self.framework or "MLPerf"
            return self._mllog.event(text)
        for needle, reader in _READERS:
            if needle in text and (event := reader(text)) is not None:
                self._name(reader, event)
                return event
        return self._timers.event(text, stream) or self._failures.event(text, stream)

    def _name(self, reader: Reader, event: Event) -> None:
        if isinstance(event, StepLine) and not (self.framework and event.weak):
            bar = "Lightning" if event.bar.startswith("Epoch") else "progress bar"
            name = _FRAMEWORK.get(reader, bar)
            if self.framework in ("", "progress bar", "DeepSpeed"):
                self.framework = name
