"""Logs of training frameworks, tables of trackers, op timelines."""

from __future__ import annotations

import json
from collections.abc import Callable

from benchmarks.readers.auditing import audit_reader
from benchmarks.readers.reader import (
    DATA,
    Build,
    Reader,
    csv_shapes,
    files,
    json_shapes,
    line_shapes,
    real_lines,
    records,
    repeated,
)


def _log(name: str) -> Callable[[], list[bytes]]:
    return files(f"logs/{name}")


def clock(number: int) -> str:
    return f"2025-03-{1 + number // 86400 % 28:02d} {number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"


def _megatron(n: int) -> str:
    return (
        f" [{clock(n)}.000000] iteration {n + 1:8d}/{10**8:8d} | consumed samples: {512 * n:12d} | elapsed "
        f"time per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 402.5 | learning rate: "
        f"1.500000E-04 | global batch size:   512 | lm loss: 1.100000E+01 | loss scale: 1.0 | grad norm: "
        f"0.512 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _deepspeed(n: int) -> str:
    return (
        f"steps: {10 * n + 10} loss: 4.8000 iter time (s): 0.800 samples/sec: 320.000\nrank=0 time (ms) | "
        "fwd: 200.00 | bwd: 450.00 | bwd_inner: 400.00 | bwd_allreduce: 50.00 | step: 100.00"
    )


def _torchtitan(n: int) -> str:
    return (
        f"[rank0]:[titan] {clock(n)},000 - root - INFO - step: {n + 1:2d}  loss: 10.2  grad_norm:  1.1  "
        "memory: 40.00GiB(50.00%)  tps: 8,192  tflops: 350.00  mfu: 35.00%"
    )


def _nanotron(n: int) -> str:
    return (
        f"03/04 {clock(n)[11:]} [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: {n + 1} / {10**8} | "
        "consumed_tokens: 1.05M | time_per_iteration_ms: 5.2K | tokens_per_sec: 202K | "
        "tokens_per_sec_per_gpu: 25.2K | global_batch_size: 1.05M | lm_loss: 10.9"
    )


def _nemo(n: int) -> str:
    return (
        f"Training epoch 0, iteration {n}/{10**8} | lr: 1.5e-05 | global_batch_size: 512 | global_step: {n}"
        " | reduced_train_loss: 10.1 | train_step_timing in s: 2.5 | TFLOPS_per_GPU: 412.0"
    )


def _maxtext(n: int) -> str:
    return (
        f"I0304 {clock(n)[11:]}.000000 140110937163584 metric_logger.py:214] completed step: {n}, seconds: "
        "5.000, TFLOP/s/device: 152.934, Tokens/s/device: 9830.400, total_weights: 196608, loss: 11.800"
    )


def _hugging_face(n: int) -> str:
    return (
        f"{{'loss': 2.75, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': {n / 100}}}\n {n}/{10**8}"
        f" [00:10<01:00,  2.00s/it]"
    )


def _lightning(n: int) -> str:
    return f"Epoch 0:  10%|#         | {n}/{10**8} [00:10<01:30,  2.00it/s, v_num=0, train_loss=2.50]\r"


def _mlperf(n: int) -> str:
    entry = {
        "namespace": "",
        "time_ms": 1740000000000 + n * 1000,
        "event_type": "POINT_IN_TIME",
        "key": "block_stop",
        "value": None,
        "metadata": {"step_num": n + 1},
    }
    return f":::MLLOG {json.dumps(entry)}"


def _learned(n: int) -> str:
    return (
        f"{clock(n)},000 worker-0 train it={n} of {10**8} loss=2.5000 took=801.5 toks={65536 * n}"
    )


_FIRST = "megatron_restart.log"
_FRAMEWORKS: dict[str, tuple[str, Callable[[int], str]]] = {
    "megatron": (_FIRST, _megatron),
    "deepspeed": ("deepspeed_pipe.log", _deepspeed),
    "torchtitan": ("torchtitan.log", _torchtitan),
    "nanotron": ("nanotron.log", _nanotron),
    "nemo": ("nemo.log", _nemo),
    "maxtext": ("maxtext.log", _maxtext),
    "hugging-face": ("hf_trainer.log", _hugging_face),
    "lightning": ("lightning_bars.log", _lightning),
    "mllog": ("mlperf.log", _mlperf),
    "learned": ("own_loop.log", _learned),
}


def _log_shapes(file: str, line: Callable[[int], str]) -> dict[str, Build]:
    recorded = (DATA / "logs" / file).read_bytes()
    head = recorded[:4000].rpartition(b"\n")[0] + b"\n"
    real = sorted({bytes(text) for text in recorded.split(b"\n") if len(text) > 20}, key=len)
    chosen = real[:: max(len(real) // 4, 1)][:4]
    lines = line_shapes if file == _FIRST else real_lines  # the same reader: once is enough
    return {
        "natural": records(lambda n: line(n).encode(), head, b"\n"),
        "restarts": repeated(recorded),
        "hosts": records(lambda n: b"gpu%d: %s" % (n, line(n).encode()), head, b"\n"),
        "ranks": records(lambda n: b"[rank%d]: %s" % (n, line(n).encode()), head, b"\n"),
        "same step": records(lambda n: line(7).encode(), head, b"\n"),
        "warnings": records(lambda n: b"WARNING: odd thing %d happened" % n, head, b"\n"),
        "errors": records(lambda n: b"RuntimeError: CUDA error %d: out of memory" % n, head, b"\n"),
        **lines(head, chosen),
    }


_OPS = b"step,dp_rank,stage,rank,optype,start_ts,duration,seq_id,mb_id"


def _operations(size: int, replicas: int = 2, stages: int = 2, per_step: int = 4) -> bytes:
    """Steps of forward and backward on every worker, and the optimiser."""
    rows = [_OPS]
    total, step = 0, 0
    while total < size:
        for d in range(replicas):
            for s in range(stages):
                at = 1000.0 + step * 2.0 + s * 0.01
                for m in range(per_step):
                    for k, kind in enumerate(("forward-compute", "backward-compute")):
                        start = at + (m + k * per_step) * 0.1
                        rows.append(
                            b"%d,%d,%d,%d,%s,%.6f,%.6f,%d,%d"
                            % (
                                step,
                                d,
                                s,
                                d * stages + s,
                                kind.encode(),
                                start,
                                0.09 + 0.01 * d,
                                m,
                                m,
                            )
                        )
                rows.append(
                    b"%d,%d,%d,%d,optimizer,%.6f,0.01,0,-1" % (step, d, s, d * stages + s, at + 1.9)
                )
        total = sum(map(len, rows)) if step % 64 == 0 else total + (total // max(step, 1))
        step += 1
    return b"\n".join(rows) + b"\n"


def _wide_operations(size: int) -> bytes:
    return _operations(1, replicas=max(size // 3000, 1))


def _long_operations(size: int) -> bytes:
    return _operations(1, per_step=max(size // 400, 1))


def readers() -> list[Reader]:
    return [
        *(
            audit_reader(f"log-{name}", "train.log", _log_shapes(file, line), _log(file))
            for name, (file, line) in _FRAMEWORKS.items()
        ),
        *_table_readers(),
    ]


def _table_readers() -> list[Reader]:
    history = records(
        lambda n: b'{"epoch": %d, "loss": 2.5, "step": %d}' % (n, n + 1),
        b'{"max_steps": 40, "log_history": [',
        b"]}",
        b",",
    )
    header = b"epoch,step,train_loss,val_loss,train|time,train|device/mfu"
    nccl = (DATA / "logs" / "nccl_tests.txt").read_bytes()
    return [
        audit_reader(
            "log-trainer-state",
            "trainer_state.json",
            {"natural": history, **json_shapes(b'{"log_history":', b"}")},
            _log("trainer_state.json"),
        ),
        audit_reader(
            "log-metrics-csv",
            "metrics.csv",
            {
                "natural": records(
                    lambda n: b"0,%d,2.820,,%d,0.38" % (n, n), header + b"\n", b"\n"
                ),
                **csv_shapes(header, b"0,9,2.8,,5.0,0.38"),
            },
            _log("lightning_metrics.csv"),
        ),
        audit_reader(
            "log-nccl-tests",
            "nccl.txt",
            {
                "natural": repeated(nccl.rpartition(b"\n#")[0] + b"\n"),
                **line_shapes(nccl[:400], nccl.split(b"\n")[-8:-5]),
            },
            _log("nccl_tests.txt"),
        ),
        audit_reader(
            "op-timeline",
            "trace.csv",
            {
                "natural": _operations,
                "wide": _wide_operations,
                "long": _long_operations,
                **csv_shapes(_OPS, b"0,0,0,0,forward-compute,1000.0,0.1,0,0"),
            },
        ),
    ]
