"""Metrics, kernel logs, burn-in tests, accounting and outages of clusters."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial

from benchmarks.readers.auditing import audit_reader
from benchmarks.readers.logs import clock
from benchmarks.readers.reader import (
    Reader,
    csv_shapes,
    files,
    json_shapes,
    line_shapes,
    long_lines,
    records,
)

_DCGM = (
    'DCGM_FI_DEV_GPU_UTIL{{gpu="{g}",UUID="GPU-{g:08x}",device="nvidia{g}",'
    'modelName="NVIDIA H100 80GB HBM3",Hostname="{h}",pod="{p}"}} {v} {t}'
)


def _dcgm(n: int, gpus: int = 8, pods: int = 1) -> bytes:
    return _DCGM.format(
        g=n % gpus,
        h=f"gpu{n % gpus // 8}",
        p=f"pod-{n % pods}",
        v=50 + n % 40,
        t=1_760_000_000_000 + n // gpus * 15_000,
    ).encode()


_TEXT = b"# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"


def _series(n: int) -> bytes:
    labels = {
        "__name__": "DCGM_FI_DEV_GPU_UTIL",
        "gpu": str(n % 8),
        "UUID": f"GPU-{n}",
        "Hostname": f"h{n}",
    }
    values = [[1_760_000_000 + 15 * k, str(40 + k)] for k in range(6)]
    return json.dumps({"metric": labels, "values": values}).encode()


_ANSWER = b'{"status":"success","data":{"resultType":"matrix","result":['


def _monitor(n: int) -> bytes:
    stamp = clock(15 * n)
    sample = {
        "time": stamp,
        "cpu_usage": 12.5,
        "gpu_usage:0": 50 + n % 9,
        "gpu_power:0": 400.0,
        "gpu_temperature:0": 60,
        "gpu_mem_used:0": 4e10,
        "gpu_mem_total:0": 8e10,
        "eth0_receive_bw": 1.0,
    }
    return json.dumps(sample).encode()


_XID = (
    "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
_KERNEL = [
    f"6,3964,206764307,-;{_XID}",
    f"[  206.764307] {_XID}",
    f"kern  :warn  : [  206.764307] {_XID}",
    f"[Sun Feb 23 16:24:18 2025] {_XID}",
    f"2025-02-23T16:24:18.250000+00:00 gpu7 kernel: [  206.764307] {_XID}",
    f"Feb 23 16:24:18 gpu7 kernel: [  206.764307] {_XID}",
    json.dumps(
        {
            "__REALTIME_TIMESTAMP": "1740327858000000",
            "_HOSTNAME": "gpu7",
            "SYSLOG_IDENTIFIER": "kernel",
            "MESSAGE": _XID,
        }
    ),
    "Feb 23 16:24:19 gpu7 kernel: message repeated 5 times: [ mlx5_core 0000:3b:00.0: port down]",
    "[  300.1] NVRM: GPU at PCI:0000:9b:00: GPU-5a1b2c3d-0000-1111-2222-333344445555",
    "[  310.0] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
    "[  311.0] Out of memory: Killed process 1234 (python) total-vm:1000kB, anon-rss:900kB",
]


def _kernel_line(n: int, gpus: int = 8) -> bytes:
    return f"[{200 + n}.764307] NVRM: Xid (PCI:0000:{n % gpus:02x}:00): {31 + n % 60}, pid={n}, Ch 00000010".encode()


_BURN_GPUS = b"".join(
    b"GPU %d: NVIDIA H100 (UUID: GPU-%08x-0000-1111-2222-333344445555)\n" % (n, n) for n in range(4)
)


def _burn(n: int) -> bytes:
    return (
        b"%.1f%%  proc'd: %d (50000 Gflop/s) - %d (50100 Gflop/s) - 5 (49000 Gflop/s) - 5 (48000 Gflop/s)   "
        b"errors: 0 - 0 - 1 - 0   temps: 60 C - 61 C - 62 C - -- " % (n % 100, n, n)
    )


_SACCT = b"JobID|JobName|User|Account|State|Submit|Start|End|Elapsed|AllocTRES|NodeList|ConsumedEnergyRaw"


def _sacct(n: int, nodes: int = 64) -> bytes:
    state = ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED by 1001", "RUNNING")[n % 5]
    return (
        f"{n + 1}|train{n % 7}|user{n % 9}|team{n % 3}|{state}|{clock(n * 60).replace(' ', 'T')}|"
        f"{clock(n * 60 + 30).replace(' ', 'T')}|{clock(n * 60 + 3000).replace(' ', 'T')}|00:49:30|"
        f"billing=8,cpu=8,gres/gpu:h100=16,gres/gpu=16,mem=32G,node=2|n[{n % nodes}-{n % nodes + 1}]|0"
    ).encode()


def _wide_hostlist(n: int) -> bytes:
    return _sacct(n).replace(b"n[", b"n[0-9999,")


_JOBS = b"jobid,user,vc,submit_time,start_time,end_time,num_gpus,state,nodes"


def _job(n: int, users: int = 9) -> bytes:
    return f"{n},u{n % users},vc{n % 3},{clock(n)},{clock(n + 60)},{clock(n + 4000)},8,Pass,n{n % 50}".encode()


def _slurm_job(n: int) -> bytes:
    return json.dumps(
        {
            "job_id": n,
            "name": f"train{n}",
            "user": f"user{n % 9}",
            "account": "llm",
            "state": {"current": ["COMPLETED"]},
            "nodes": f"n[{n % 64}-{n % 64 + 1}]",
            "time": {
                "submission": 1_760_000_000 + n,
                "start": 1_760_000_010 + n,
                "end": 1_760_003_000 + n,
                "elapsed": 2990,
            },
            "tres": {"allocated": [{"type": "gres", "name": "gpu", "id": 1001, "count": 16}]},
        }
    ).encode()


_SLURM = (
    b'{"meta":{"plugin":{"type":"openapi/slurmdbd"},"Slurm":{"version":{"major":"23"}}},"jobs":['
)
_SCONTROL = files("accounting/scontrol_*.txt")


def _node(n: int) -> bytes:
    return (
        b"NodeName=n%d Arch=x86_64 CoresPerSocket=1\n   Gres=gpu:h100:8\n   State=DOWN+DRAIN ThreadsPerCore=1\n"
        b"   CfgTRES=cpu=32,mem=62.50G,billing=32,gres/gpu=8\n   Reason=broken %d [root@2026-11-15T10:09:56]\n"
        % (n, n)
    )


_OUTAGES = b"node,event_time_days,event,class"


def _outage(n: int, nodes: int = 100) -> bytes:
    event = b"fault_end" if n // nodes % 2 else b"fault_start"
    return b"n%d,%d.5,%s,GPU" % (n % nodes, n // nodes, event)


def _lines(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


def _unzipped(pattern: str, cut: int = 3000) -> Callable[[], list[bytes]]:
    return lambda: [gzip.decompress(part)[:cut] for part in files(pattern)()]


def readers() -> list[Reader]:
    kernel = "\n".join(_KERNEL).encode() + b"\n"
    return [
        audit_reader(
            "metrics-text",
            "metrics.prom",
            {
                "natural": records(_dcgm, _TEXT, b"\n"),
                "series": records(partial(_dcgm, gpus=10**9), _TEXT, b"\n"),
                "held series": records(partial(_dcgm, gpus=10**9, pods=10**9), _TEXT, b"\n"),
                "pods": records(partial(_dcgm, pods=10**9), _TEXT, b"\n"),
                "metrics": records(lambda n: b"node_x%d 1" % n, _TEXT, b"\n"),
                "exemplars": long_lines(b" # {", _TEXT, b"} 1"),
                "labels": long_lines(b'a="b",', _TEXT + b"x{", b"} 1"),
                **line_shapes(_TEXT, [_dcgm(0)]),
            },
        ),
        audit_reader(
            "metrics-answer",
            "answer.json",
            {"natural": records(_series, _ANSWER, b"]}}", b","), **json_shapes(_ANSWER, b"]}}")},
        ),
        audit_reader(
            "metrics-monitor",
            "monitor.jsonl",
            {
                "natural": records(_monitor, b"", b"\n"),
                **json_shapes(_monitor(0) + b"\n" + b'{"time":', b"}\n"),
            },
        ),
        audit_reader(
            "metrics-counters",
            "counters.csv",
            {
                "natural": records(lambda n: b"DCGM_FI_DEV_X%d, gauge, words" % n),
                **line_shapes(b"DCGM_FI_DEV_GPU_UTIL, gauge, x\n", [b"DCGM_FI_DEV_X, gauge, x"]),
            },
        ),
        audit_reader(
            "kernel-log",
            "kern.log",
            {
                "natural": records(_kernel_line, kernel, b"\n"),
                "devices": records(partial(_kernel_line, gpus=256), kernel, b"\n"),
                "same line": records(lambda n: _kernel_line(7), kernel, b"\n"),
                **line_shapes(kernel, _lines(*_KERNEL[::3])),
            },
            lambda: [kernel],
        ),
        audit_reader(
            "gpu-burn",
            "burn.txt",
            {
                "natural": records(_burn, _BURN_GPUS, b"\n"),
                **line_shapes(_BURN_GPUS + _burn(1) + b"\n", [_burn(1)]),
            },
        ),
        audit_reader(
            "sacct",
            "sacct.txt",
            {
                "natural": records(_sacct, _SACCT + b"\n", b"\n"),
                "nodes": records(partial(_sacct, nodes=10**9), _SACCT + b"\n", b"\n"),
                "wide hostlists": records(_wide_hostlist, _SACCT + b"\n", b"\n"),
                **line_shapes(_SACCT + b"\n", [_sacct(0)]),
            },
            files("accounting/sacct.txt"),
        ),
        audit_reader(
            "sacct-json",
            "sacct.json",
            {"natural": records(_slurm_job, _SLURM, b"]}", b","), **json_shapes(_SLURM, b"]}")},
            _unzipped("accounting/sacct.json.gz"),
        ),
        audit_reader(
            "scontrol",
            "scontrol.txt",
            {"natural": records(_node), **line_shapes(_node(0), _node(1).split(b"\n")[1:])},
            lambda: [part[:2500] for part in _SCONTROL()],
        ),
        audit_reader(
            "jobs-csv",
            "jobs.csv",
            {
                "natural": records(_job, _JOBS + b"\n", b"\n"),
                "users": records(partial(_job, users=10**9), _JOBS + b"\n", b"\n"),
                **csv_shapes(_JOBS, _job(1)),
            },
        ),
        audit_reader(
            "outages-csv",
            "outages.csv",
            {
                "natural": records(_outage, _OUTAGES + b"\n", b"\n"),
                "nodes": records(partial(_outage, nodes=10**9), _OUTAGES + b"\n", b"\n"),
                **csv_shapes(_OUTAGES, _outage(1)),
            },
        ),
    ]
