"""`--redact`: nothing of the user's names, all of the findings and figures."""

from __future__ import annotations

import gzip
import json
import pickle
import time
import tracemalloc
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from computeflow.answers.audits import AuditAnswer, audit
from computeflow.answers.public_words import identifier_parts, is_public
from computeflow.answers.redaction import Redaction
from computeflow.cli import run
from computeflow.views.tables import to_text
from kineto_maker import Maker

DATA = Path(__file__).parent / "data"
LETTERS = st.characters(categories=["Ll", "Lu", "Lo", "Nd"])


def is_private(word: str) -> bool:
    """Whether no public program has this word; `narrow` in `fused_narrow_attention` may be torch's."""
    parts = identifier_parts(f"fused_{word}_attention") or []
    return not is_public(word) and not any(shown and word in part for part, shown in parts)


WORDS = st.lists(
    st.text(LETTERS, min_size=6, max_size=12).filter(is_private),
    min_size=16,
    max_size=16,
    unique=True,
)


@dataclass(frozen=True)
class Planted:
    """Private words of a cluster's owner, each in a place where such words occur."""

    user: str
    team: str
    job: str
    host: str
    domain: str
    pod: str
    namespace: str
    folder: str
    file: str
    kernel: str
    note: str
    group: str
    secret: str
    bucket: str
    reason: str
    function: str

    def words(self) -> tuple[str, ...]:
        return tuple(vars(self).values())


PLAIN = Planted(
    *(
        f"acme{word}"
        for word in (
            "user",
            "team",
            "job",
            "host",
            "domain",
            "pod",
            "space",
            "folder",
            "file",
            "kernel",
            "note",
            "group",
            "secret",
            "bucket",
            "reason",
            "function",
        )
    )
)


def trace(at: Path, p: Planted) -> None:
    for rank in range(2):
        maker = Maker(rank=rank, world=2, groups={"0": (p.group, [0, 1])})
        for number in (1, 2, 3):
            start = maker.host
            for _ in range(3):
                maker.product(4096, 4096, 4096, 200.0)
            maker.kernel(f"void {p.kernel}::fused_{p.user}_attention<float>(int*)", 300.0)
            maker.host += 900.0  # nothing is queued
            maker.kernel(f"triton_{p.kernel}", 10.0)
            maker.span(
                "user_annotation", f"/home/{p.user}/{p.note}.py(12): {p.function}", start, 5.0
            )
            maker.collective("allreduce", "0", maker.device + 100.0)
            maker.step(number, start)
        maker.write(at).rename(at / f"{p.file} trace rank{rank}.json")


def log(at: Path, p: Planted) -> None:
    text = (DATA / "logs" / "megatron_restart.log").read_text()
    text = text.replace("/ckpt/run7", f"s3://{p.bucket}/{p.user}").replace(
        "NCCL communicator was aborted",
        f"{p.reason} on {p.host}.{p.domain}.net fe80::{p.user}%eth0, ~{p.user}/x, "
        f"{p.folder}/{p.file}.py, "
        rf"C:\Users\{p.user}\{p.file}.txt \\{p.host}\{p.folder} {p.user}@{p.domain}.org "
        f"hf_{p.secret}, password={p.secret} git@{p.domain}:{p.folder}/x.git NCCL communicator aborted",
    )
    (at / f"{p.job}-{p.file}.out").write_text(text)


def accounting(at: Path, p: Planted) -> None:
    head = "JobID|JobName|User|Account|State|Submit|Start|End|Elapsed|AllocTRES|NodeList"
    rows = [
        f"{n}|{p.job}|{p.user}|{p.team}|{state}|2026-11-15T10:09:56|2026-11-15T10:09:56|"
        f"2026-11-15T10:20:08|00:10:12|gres/gpu=8,node=1|{p.host}"
        for n, state in enumerate(("COMPLETED", "NODE_FAIL"), 1)
    ]
    (at / f"sacct-{p.team}.txt").write_text("\n".join([head, *rows]) + "\n")
    (at / "scontrol.txt").write_text(
        f"NodeName={p.host} CPUAlloc=0 Gres=gpu:h100:8 State=DOWN+DRAIN "
        "CfgTRES=cpu=1,mem=1000M,gres/gpu=8\n"
        f"   Reason=xid 79 says {p.reason} [{p.user}@2026-11-15T10:18:00]\n\n"
    )


def metrics(at: Path, p: Planted) -> None:
    lines = ["# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
    labels = (
        f'gpu="0",UUID="GPU-{p.secret}",modelName="NVIDIA H100 80GB HBM3",Hostname="{p.host}",'
        f'pod="{p.pod}",namespace="{p.namespace}",container="{p.job}"'
    )
    lines += [f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 0 {1763200000000 + 30000 * n}" for n in range(60)]
    (at / f"{p.pod}.prom").write_text("\n".join(lines) + "\n")


def kernel_log(at: Path, p: Planted) -> None:
    xid = f"NVRM: Xid (PCI:0000:9b:00): 79, pid=7, name={p.user}, GPU has fallen off the bus."
    lines = [
        f"2026-11-15T10:1{n}:18.250000+00:00 {p.host} kernel: [  206.764307] {xid}" for n in (1, 5)
    ]
    (at / f"{p.host}.log").write_text("\n".join(lines) + "\n")


def renamed(data: Any, p: Planted) -> Any:
    """A recorded dump whose files, functions and groups have planted names."""
    if isinstance(data, dict):
        return {
            key: f"/home/{p.user}/{p.folder}/{p.file}.py"
            if key == "filename"
            else p.function
            if key == "name" and "filename" in data
            else p.group
            if key == "desc"
            else renamed(value, p)
            for key, value in data.items()
        }
    return [renamed(each, p) for each in data] if isinstance(data, list) else data


def dumps(at: Path, p: Planted) -> None:
    for rank in range(4):
        dump = renamed(
            pickle.loads((DATA / "gloo_hangs/ddp-4-ranks" / f"rank_{rank}").read_bytes()), p
        )
        (at / f"{p.job}_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    with gzip.open(DATA / "memory" / "oom-too-big.pickle.gz") as file:
        (at / f"{p.note}.pickle").write_bytes(pickle.dumps(renamed(pickle.load(file), p)))


def plant(root: Path, p: Planted) -> Path:
    folder = root / f"{p.folder} of {p.user}"
    for name, write in (
        ("t", trace),
        ("r", log),
        ("a", accounting),
        ("m", metrics),
        ("k", kernel_log),
        ("d", dumps),
    ):
        (folder / name).mkdir(parents=True)
        write(folder / name, p)
    return folder


def texts(answer: AuditAnswer) -> str:
    """All texts of the answer: JSON, tables, the parts of the report."""
    shown = [json.dumps(answer.to_dict(), ensure_ascii=False), *map(to_text, answer.tables())]
    return "\n".join([*shown, str(answer.parts())])


@cache
def ours() -> str:
    """Texts that do not depend on names: figures, and words such as `workloads`."""
    with TemporaryDirectory() as root:
        folder = plant(Path(root), PLAIN)
        return texts(audit(folder, redact=True, details=True, no_cache=True))


def test_words_of_public_libraries_are_not_private() -> None:
    assert not is_private("narrow")
    assert is_private("acmeuser")


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(WORDS)
def test_no_planted_word_is_in_a_redacted_answer(words: list[str]) -> None:
    planted = Planted(*words)
    with TemporaryDirectory() as root:
        folder = plant(Path(root), planted)
        shown = texts(audit(folder, redact=True, details=True, no_cache=True))
    assert [word for word in words if word in shown and word not in ours()] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("planted"), PLAIN)


@pytest.fixture(scope="module")
def plain(folder: Path) -> AuditAnswer:
    return audit(folder, details=True, no_cache=True)


@pytest.fixture(scope="module")
def redacted(folder: Path) -> AuditAnswer:
    return audit(folder, details=True, no_cache=True, redact=True)


def test_without_redaction_the_planted_words_are_there(plain: AuditAnswer) -> None:
    """The planted names show without redaction, except where the answer leaves them out anyway."""
    shown = texts(plain)
    assert {word for word in PLAIN.words() if word not in shown} <= {PLAIN.group, PLAIN.bucket}
    kinds = {each["kind"] for each in plain.to_dict()["observed"]}
    others = {"flight-recorder", "memory", "kernel-log", "metrics", "log"}
    assert kinds == {"fleet", "accounting"} | others


def facts_of(data: dict[str, Any], kind: str) -> Any:
    return next(each["facts"] for each in data["observed"] if each["kind"] == kind)


def figures(data: Any) -> Any:
    """The same data without its texts."""
    if isinstance(data, dict):
        return [figures(value) for value in data.values()]
    return (
        [*map(figures, data)] if isinstance(data, list) else "" if isinstance(data, str) else data
    )


def test_figures_and_findings_are_the_same(plain: AuditAnswer, redacted: AuditAnswer) -> None:
    open_, closed = plain.to_dict(), redacted.to_dict()
    assert figures(open_) == figures(closed)
    for one, other in zip(open_["findings"], closed["findings"], strict=True):
        for field in ("rule", "account", "ranks", "confidence"):
            assert one[field] == other[field], field
        verb, same = one["remedy"]["command"].partition(" ")[0], other["remedy"]["command"]
        assert same.startswith(verb)  # names in it have stand-ins
    assert [x["what"] for x in facts_of(closed, "kernel-log")["faults"]] == ["xid 79"]
    assert "NCCL timeout: ALLREDUCE" in json.dumps(closed)
    assert closed["per_rank"][0]["device"] == "NVIDIA H200"
    names = [row["name"] for row in closed["per_rank"][0]["kernels"]]
    assert "gemm" in names and "ncclDevKernel_allreduce" in names
    assert any("_attention<float>" in name for name in names)


def test_a_name_has_one_stand_in_everywhere(folder: Path, redacted: AuditAnswer) -> None:
    again = audit(folder, details=True, no_cache=True, redact=True)
    assert texts(again) == texts(redacted)
    data = redacted.to_dict()
    accounts, faults = facts_of(data, "accounting"), facts_of(data, "kernel-log")["faults"]
    node = faults[0]["node"]
    assert node == "node-1"
    assert accounts["by_node"][0]["name"] == node == accounts["nodes_out"][0]["name"]
    rows = {row for table in redacted.tables() for row in table.rows}
    assert any(row[:2] == ("xid 79", node) for row in rows)
    assert any(node in finding["title"] for finding in data["findings"])


def test_the_report_has_its_figures_and_no_name(redacted: AuditAnswer, tmp_path: Path) -> None:
    redacted.save_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text() + repr(redacted) + redacted._repr_html_()
    assert not [word for word in PLAIN.words() if word in page]
    assert "along time" in page
    assert page.count('class="plot"') >= 3


@pytest.mark.parametrize("option", ["--perfetto", "--calibrate"])
def test_files_with_names_are_not_written_beside(
    option: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.json"
    assert run(["audit", str(folder), "--redact", option, str(target)]) == 2
    assert f"{option} cannot be combined with --redact" in capsys.readouterr().err
    assert not target.exists()


def text_of(text: str) -> str:
    return Redaction({}).text(text)


HIDDEN = r"""
runs/acme/train.log => path-1
../acme/x => ..path-1
~acme/x => path-1
~/acme => path-1
/home/acme/train.py(12): step => path-1(12): step
/mnt/acme=1/run+acme/x => path-1
C:\Users\acme\x.py => path-1
\\acme\share => path-1
file:///acme/x => url-1
s3://acme/run => url-1
gs://acme, hf://acme/model => url-1 url-2
https://acme.com/x?token=acme => url-1
https://u:acme@host/x.git => url-1
git@acme.com:x/y.git => url-1
acme@example.org => address-1
acme.corp.example:8080 => name-1:8080
gpu-acme-07 => name-1
host acme: error => host name-1: error
10.11.12.13 => address-1
10.11.12.13:29500 => address-1:29500
fe80::1ff:fe23:4567:890a%ib0 => address-1
2001:db8::7 => address-1
::ffff:10.11.12.13 => ::name-1
[2001:db8::7]:80 => [address-1]:80
2001:0db8:0000:0000:0000:0000:0000:0007 => address-1
0c:42:a1:5e:90:7b => address-1
00-11-22-33-44-55 => address-1
0c42.a15e.907b => address-1
0x0c42a103005e907b => address-1
0c42:a103:005e:907b => address-1
GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52 => gpu-1
serial 1320922056789 => name-1 name-2
hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456 => secret-1
sk-proj-AbCd1234 => secret-1
AKIAIOSFODNN7EXAMPLE => secret-1
ghp_0123456789abcdefABCDEF => secret-1
github_pat_11ABCDEFG0123 => secret-1
glpat-xyzXYZ123 => secret-1
xoxb-12345-67890-AbCdEf => secret-1
eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123 => secret-1
Authorization: Bearer acme => Authorization: secret-1 secret-2
bearer acme => bearer secret-1
token=acme => token=secret-1
password: step => name-1: secret-1
WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 => name-1=secret-1
ACME_HOME=acme => name-1=name-2
-----BEGIN RSA PRIVATE KEY----- MIIEacme/step+of -----END RSA PRIVATE KEY----- => secret-1
void acme::attention_kernel<acme::Half>(int) => void name-1::attention_kernel<name-1::Half>(int)
triton_acme_fused => triton_name-1_fused
acmeGemmKernel => name-1
gemmA1B2C3D4E5 => name-1
aten::acme_mm => aten::name-1_mm
nn.Module: AcmeBlock_0 => path-1: name-1
"""


@pytest.mark.parametrize("case", HIDDEN.strip().splitlines())
def test_what_is_somebodys_own_is_gone(case: str) -> None:
    text, hidden = case.split(" => ")
    assert text_of(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "GPU 3 of 8, 12.5 % of 1,234.0 GPU-s",
        "xid 79",
        "NCCL WARN",
        "2026-11-15 10:09:56 to 10:20",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "aten::mm",
        "triton_poi_fused_add_cos_sin_0",
        "cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "NVIDIA A100-SXM4-80GB",
        "NVRM: Xid (PCI:0000:9b:00): 79",
        "TENSOR_MODEL_PARALLEL_GROUP (41)",
        "407 TFLOP/s, 3.35 TB/s",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        "",
    ],
)
def test_what_is_everybodys_stays(text: str) -> None:
    assert text_of(text) == text


@given(
    st.text(st.characters(categories=["L", "M", "N", "So", "Cf"]), min_size=6, max_size=20).filter(
        lambda word: not is_public(word)
    ),
    st.sampled_from(
        [
            "{}",
            "on {}: error",
            "/home/{}/x.py",
            "runs/{}",
            "{}@host",
            "fused_{}_kernel",
            "gemm{}",
            "at::{}::op",
            "x={}",
            "hf_{}",
            "{}.log:12",
            "({})",
            r"C:\Users\{}",
            "{}:8080",
            "gpu-{}-0",
            "~{}",
            "http://{}:9090/x",
            "Bearer {}",
            "xid 79 {}",
        ]
    ),
)
def test_no_word_is_kept_that_is_not_known(word: str, around: str) -> None:
    assert word not in text_of(around.format(word))


def test_names_that_are_words_of_ours_are_names_where_names_stand() -> None:
    data = {
        "user": "step",
        "by_job": [{"name": "compute"}, {"name": "12"}],
        "account": "compute",
        "node": "rank-3",
        "text": "12 step of compute on rank-3:12",
    }
    assert Redaction(data).value(data) == {
        "user": "user-1",
        "by_job": [{"name": "job-1"}, {"name": "job-2"}],
        "account": "compute",
        "node": "node-1",
        "text": "12 step of compute on node-1:12",
    }


def test_keys_and_names_of_several_words_are_redacted() -> None:
    data = {
        "path": "/data/my run (final)/log of acme.txt",
        "node": {"acme-7": 1},
        "text": "/data/my run (final)/log of acme.txt:12, log of acme.txt",
    }
    assert Redaction(data).value(data) == {
        "path": "file-1",
        "node": {"node-1": 1},
        "text": "file-1:12, file-1",
    }


@pytest.mark.parametrize(
    "piece",
    ["a", "a.", "a:1", "a+", "a/", "-", "a-", "1:", "~", "token", "://", "gemm_q", "_", "=\n"],
)
def test_redaction_is_linear_in_the_length_of_a_text(piece: str) -> None:
    def seconds(length: int) -> float:
        text, began = piece * (length // len(piece)), time.process_time()
        text_of(text)
        return time.process_time() - began

    text_of(piece)
    assert seconds(64_000) < 8 * seconds(16_000) + 0.05


@pytest.mark.parametrize("field", ["note", "node"])
@pytest.mark.parametrize("piece", ["1.", "aa-", "aa:", "aa/", "aa_", "gemm_", "h100-", "aa bb "])
def test_redaction_takes_little_memory_for_a_long_text(piece: str, field: str) -> None:
    data = {field: piece * (200_000 // len(piece))}
    text_of(piece)  # the vocabulary is read
    tracemalloc.start()
    try:
        Redaction(data).value(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 12 * len(data[field])  # from 70 to 90 where all of it is taken apart


@pytest.mark.parametrize("piece", ["1.", "gemm_", "h100-", "7x", "rank-"])
def test_what_is_too_long_to_take_apart_is_hidden(piece: str) -> None:
    assert text_of(f"see {piece * 5000}acme now") in ("see name-1 now", "see path-1 now")
    assert not is_public(piece * 5000)


def test_a_name_too_long_to_look_for_is_hidden_in_its_field_and_word_by_word() -> None:
    name = "acme zebra " * 500
    redacted = Redaction({"node": name, "note": f"on {name}"})
    assert redacted.value({"node": name}) == {"node": "node-1"}
    assert not {"acme", "zebra"} & set(redacted.text(f"on {name}").split())
