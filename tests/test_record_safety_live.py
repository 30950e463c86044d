"""`record` around real processes: it never hurts the run, and what it keeps can be read."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.prove_recorder import kill_at_random

from recorded_runs import FIRST, ROOT, Run, environment, files_of, record_words, recorded, script

pytestmark = pytest.mark.live
TRAIN = """
import os, sys, threading, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
"""


def train(tmp_path: Path, text: str, **more: str) -> Run:
    return recorded(
        tmp_path / "run", sys.executable, script(tmp_path, TRAIN + text), quiet=False, **more
    )


# The command as it would be alone


SPEAKS = """
import sys, warnings
print("out", sys.argv[1:], sys.stdin.read())
sys.stdout.flush()
sys.stdout.buffer.write(b"\\x00\\xff no newline")
sys.stderr.write("err \\u00fc\\n")
warnings.warn("be warned")
def deep(): raise ValueError("as ever")
if "fail" in sys.argv: deep()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("arguments", [["0"], ["7", "--out", "x", "-o", "json"], ["1", "fail"]])
def test_streams_and_exit_code_are_the_commands(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, script(tmp_path, SPEAKS), *arguments]
    alone, under = (
        subprocess.run(words, input=b"in", capture_output=True, env=environment(), check=False)
        for words in (command, record_words(tmp_path / "run", *command))
    )
    assert (alone.stdout, alone.stderr) == (under.stdout, under.stderr)
    assert alone.returncode == under.returncode


def test_streams_of_training_are_the_commands(tmp_path: Path) -> None:
    text = TRAIN + "train(5); print(model.weight); print(torch.initial_seed(), file=sys.stderr)\n"
    command = [sys.executable, script(tmp_path, text + "raise SystemExit('bye')")]
    alone = subprocess.run(command, capture_output=True, env=environment(), check=False)
    under = recorded(tmp_path / "run", *command)
    assert (alone.stdout, alone.stderr) == (under.out, under.err)
    assert alone.returncode == under.code == 1
    assert under.steps() == {FIRST: 5}


WAITS = """
import signal, sys, time
def stop(number, _):
    print("got", number, flush=True)
    sys.exit(number + 40)
if "trap" in sys.argv:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop)
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
print("ready", flush=True)
time.sleep(60)
"""


def heed_interrupts() -> None:
    """What a shell starts in the background ignores them, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("trap", ["trap", "die"])
def test_signals_reach_the_command(tmp_path: Path, number: int, trap: str) -> None:
    command = record_words(tmp_path / "run", sys.executable, script(tmp_path, WAITS), trap)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    rest = process.stdout.read()
    assert process.wait(30) == (number + 40 if trap == "trap" else 128 + number)
    assert rest == (f"got {number}\n".encode() if trap == "trap" else b"")


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    text = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    words = record_words(tmp_path / "run", sys.executable, "-c", text)
    done = subprocess.run(
        ["nohup", *words], capture_output=True, env=environment(), check=True, timeout=60
    )
    assert done.stdout == b"True\n"


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", "no-such-command-here")
    assert run.code == 2
    assert b"No such file or directory" in run.err
    assert b"Traceback" not in run.err


def test_an_output_folder_that_cannot_be_is_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = recorded(tmp_path / "file" / "run", "touch", str(tmp_path / "ran"))
    assert run.code == 2
    assert b"Not a directory" in run.err
    assert not (tmp_path / "ran").exists()


# Python's start


def test_the_users_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    script(
        tmp_path / "theirs", "import builtins; builtins.theirs = 7; mine = 8", "sitecustomize.py"
    )
    text = "import sitecustomize; print(theirs, sitecustomize.mine, sitecustomize.__file__)"
    command = [sys.executable, "-c", text]
    path = str(tmp_path / "theirs")
    alone = subprocess.run(
        command, capture_output=True, env=environment(PYTHONPATH=path), check=True
    )
    under = recorded(tmp_path / "run", *command, PYTHONPATH=path)
    assert alone.stdout == under.out
    assert under.out.startswith(b"7 8 ")


@pytest.mark.parametrize("fault", ["1 / 0", "import no_such_module_here", "raise SystemExit(3)"])
def test_a_sitecustomize_that_fails_does_so_as_ever(tmp_path: Path, fault: str) -> None:
    script(tmp_path / "theirs", fault, "sitecustomize.py")
    path = str(tmp_path / "theirs")
    command = [sys.executable, script(tmp_path, TRAIN + "train(3)")]
    kept = environment(PYTHONPATH=path)
    alone = subprocess.run(command, capture_output=True, env=kept, check=False)
    # The parent is Python too: it starts without the fault.
    words = record_words(tmp_path / "run", "env", f"PYTHONPATH={path}", *command)
    words[words.index("--") + 2] = (
        f"PYTHONPATH={ROOT / 'src/computeflow/recorder/inject'}{os.pathsep}{kept['PYTHONPATH']}"
    )
    under = subprocess.run(words, capture_output=True, env=environment(), check=False)
    assert under.returncode == alone.returncode
    assert under.stdout == alone.stdout
    if b"Traceback" not in alone.stderr:
        assert under.stderr == alone.stderr
    if alone.returncode == 0:
        assert {name: len(r) > 4 for name, r in files_of(tmp_path / "run").items()} == {FIRST: True}


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_isolated_python_is_not_recorded_and_that_is_said(tmp_path: Path, option: str) -> None:
    run = recorded(tmp_path / "run", sys.executable, option, "-c", "print(1)", quiet=False)
    assert (run.code, run.out, run.files) == (0, b"1\n", {})
    assert b"python -I, -E or -S" in run.err


def test_a_process_that_never_trains_pays_next_to_nothing(tmp_path: Path) -> None:
    """CPU time of Python's own start, with and without the injected file, least of several."""
    from computeflow.recorder.starting import recording_environment

    plain = environment(PYTHONPATH="")
    watched = recording_environment(tmp_path, plain)

    def cpu(kept: dict[str, str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], env=kept, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    pairs = [(cpu(plain), cpu(watched)) for _ in range(15)]
    alone, under = (min(each) for each in zip(*pairs, strict=True))
    assert under < 1.25 * alone + 0.002
    assert list(tmp_path.iterdir()) == []


def test_processes_that_never_train_leave_no_file(tmp_path: Path) -> None:
    text = (
        "import sys, torch; torch.ones(2) + 1; "
        "print('computeflow.recorder.process_recorder' in sys.modules)"
    )
    run = recorded(tmp_path / "run", sys.executable, "-c", text, quiet=False)
    assert (run.code, run.out, run.files) == (0, b"True\n", {})
    assert b"no process trained" in run.err


def test_one_variable_switches_it_off(tmp_path: Path) -> None:
    text = "train(3); print('computeflow.recorder.process_recorder' in sys.modules)"
    run = train(tmp_path, text, COMPUTEFLOW_RECORDER="off")
    assert (run.code, run.out, run.files) == (0, b"False\n", {})


# How a process ends


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("sys.exit(3)", 3, "exit"),
        ("raise ValueError('x')", 1, "exception"),
        ("time.sleep(1); os._exit(4)", 4, None),
        ("time.sleep(1); os.kill(os.getpid(), 9)", 137, None),
        ("time.sleep(1); os.kill(os.getpid(), 15)", 143, None),
        ("time.sleep(1); os.execv('/bin/echo', ['echo', 'x'])", 0, None),
    ],
)
def test_a_recording_is_whole_however_a_process_ends(
    tmp_path: Path, end: str, code: int, how: str | None
) -> None:
    run = train(tmp_path, f"train(20)\n{end}\n")
    assert run.code == code
    assert run.steps() == {FIRST: 20}
    last = run.files[FIRST][-1]
    assert (last.get("how") if last["k"] == "end" else None) == how
    assert (b"ended without a last record" in run.err) == (how is None)


def test_killed_at_random_moments_a_second_is_lost_at_most(tmp_path: Path) -> None:
    kills = kill_at_random(tmp_path, times=10, seed=1)
    assert len(kills) == 10
    for kill in kills:
        assert kill.damaged_bytes == 0
        assert kill.lost_seconds <= 1.0
        assert kill.recorded_steps <= kill.true_steps
        assert not kill.said_its_end


# Processes and threads


def test_forks_and_workers_do_not_write_their_parents_file(tmp_path: Path) -> None:
    text = """
train(10)
child = os.fork()
train(5 if child == 0 else 7)
if child == 0:
    os.write(1, b"")
    time.sleep(1.5)  # what a kill would lose, for os._exit is one
    os._exit(0)
os.waitpid(child, 0)
from torch.utils.data import DataLoader
for _ in DataLoader(torch.randn(64, 8), batch_size=8, num_workers=2):
    train(1)
"""
    run = train(tmp_path, text)
    assert run.code == 0, run.err
    assert run.steps() == {FIRST: 25, "rank-00000.attempt-1": 5}
    assert len({records[0]["pid"] for records in run.files.values()}) == 2


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_of_one_rank_have_their_own_files(tmp_path: Path, method: str) -> None:
    text = """
if __name__ == "__main__":
    import torch.multiprocessing as processes
    context = processes.get_context(METHOD)
    started = [context.Process(target=train, args=(steps,)) for steps in (4, 6)]
    for each in started: each.start()
    for each in started: each.join()
    print([each.exitcode for each in started])
""".replace("METHOD", repr(method))
    run = train(tmp_path, text)
    assert (run.code, run.out) == (0, b"[0, 0]\n"), run.err
    assert sorted(run.steps().values()) == [4, 6]
    assert {records[-1]["k"] for records in run.files.values()} == {"end"}


def test_training_in_a_thread_is_recorded(tmp_path: Path) -> None:
    text = """
thread = threading.Thread(target=train, args=(20,))
thread.start()
thread.join()
"""
    run = train(tmp_path, text)
    assert run.steps() == {FIRST: 20}
    phases = [record["p"][::3] for record in run.files[FIRST] if record["k"] == "s"]
    assert all("b" in each for each in phases[5:])


def test_a_restart_is_an_attempt_of_its_own(tmp_path: Path) -> None:
    text = TRAIN + "train(5)\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(1)\n"
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    words = ["--nproc-per-node", "1", "--max-restarts", "1", script(tmp_path, text)]
    run = recorded(tmp_path / "run", torchrun, *words)
    assert run.code == 0, run.err
    assert run.steps() == {FIRST: 5, "rank-00000.attempt-1": 5}
    assert [records[0]["attempt"] for records in run.files.values()] == [0, 1]


def test_two_commands_of_one_rank_a_hostile_environment_and_a_strange_path(tmp_path: Path) -> None:
    path = script(tmp_path / "ünïcode ⚙ path", TRAIN + "train(5)")
    both = f'{sys.executable} "{path}" & {sys.executable} "{path}" & wait'
    hostile = f"RANK=abc WORLD_SIZE={'9' * 30} LOCAL_RANK=- TORCHELASTIC_RESTART_COUNT=1e9".split()
    run = recorded(tmp_path / "rün 日本\udcff", "env", *hostile, "bash", "-c", both)
    assert run.code == 0, run.err
    assert run.steps() == {FIRST: 5, "rank-00000.attempt-1": 5}


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_training_goes_on_when_the_disk_is_full_and_all_is_there_once_it_is_not(
    tmp_path: Path, small_disk: Path
) -> None:
    text = f"""
from pathlib import Path
train(20)
ballast = Path({str(small_disk)!r}) / "ballast"
time.sleep(1)
try: ballast.write_bytes(bytes(10**6))
except OSError: pass
train(500)
time.sleep(3)
ballast.unlink()
train(20)
time.sleep(3)
"""
    run = recorded(small_disk / "run", sys.executable, script(tmp_path, TRAIN + text))
    assert run.code == 0, run.err
    numbers = [record["n"] for record in run.files[FIRST] if record["k"] == "s"]
    assert numbers == list(range(1, 541))
    assert any("No space left" in str(record) for record in run.files[FIRST] if record["k"] == "x")


def test_training_goes_on_on_a_disk_that_stays_full(tmp_path: Path, small_disk: Path) -> None:
    run = recorded(
        small_disk / "run", sys.executable, script(tmp_path, TRAIN + "train(3000)"), quiet=False
    )
    assert run.code == 0, run.err
    numbers = [record["n"] for record in run.files[FIRST] if record["k"] == "s"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 50 < len(numbers) < 3000
    assert b"ended without a last record" in run.err


def test_a_limit_on_files_is_a_full_disk(tmp_path: Path) -> None:
    text = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); train(1000)"
    run = train(tmp_path, text)
    assert run.code == 0, run.err
    assert 20 < run.steps()[FIRST] < 1000


def test_training_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    text = """
done, real = threading.Event(), os.write
def write(file, data):
    if threading.current_thread().name == "computeflow-recorder":
        done.wait()
    return real(file, data)
os.write = write
train(300)
done.set()
"""
    run = train(tmp_path, text)
    assert (run.code, run.steps()) == (0, {FIRST: 300})


@pytest.mark.parametrize("folder", ["/proc/self/run", "/dev/null/run"])
def test_training_goes_on_where_nothing_can_be_written(tmp_path: Path, folder: str) -> None:
    text = TRAIN + "train(5); print('trained')"
    done = subprocess.run(
        [sys.executable, script(tmp_path, text)],
        capture_output=True,
        env=environment(
            PYTHONPATH=str(ROOT / "src/computeflow/recorder/inject"), COMPUTEFLOW_RECORD=folder
        ),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"trained\n", b"")


def test_training_goes_on_when_its_folder_is_deleted(tmp_path: Path) -> None:
    text = f"""
import shutil
train(5)
time.sleep(1)
shutil.rmtree({str(tmp_path / "run")!r})
train(5)
time.sleep(1)
print("trained")
"""
    run = train(tmp_path, text)
    assert (run.code, run.out, run.files) == (0, b"trained\n", {})
    assert b"Traceback" not in run.err


# Others' code in the same places


def test_faults_of_our_own_are_counted_and_not_seen(tmp_path: Path) -> None:
    text = """
from computeflow.recorder import process_recorder, evaluations, losses, models, steps
def fails(*_, **__): raise ValueError("ours")
train(3)
losses.LossReadings.note = models.Models._find = evaluations.EvaluationWatch._begin = fails
process_recorder.current().on_step.append(fails)
train(3)
steps.StepWatch.begin = steps.StepWatch.end = fails
model.eval()
model.train()
torch.save(model.state_dict(), sys.argv[0] + ".pt")
for _ in torch.utils.data.DataLoader(torch.randn(4, 8)): train(1)
print("trained")
"""
    run = train(tmp_path, text)
    assert (run.code, run.out) == (0, b"trained\n"), run.err
    assert b"Traceback" not in run.err
    errors = [record["errors"] for record in run.files[FIRST] if record["k"] == "x"][-1]
    assert {"begin", "end", "loss", "fails"} <= errors.keys()


def test_code_that_replaces_the_same_places_works_as_ever(tmp_path: Path) -> None:
    text = """
import torch.optim.optimizer as hooks
calls = []
def around(owner, name):
    real = getattr(owner, name)
    def replaced(*arguments, **options):
        calls.append(name)
        return real(*arguments, **options)
    setattr(owner, name, replaced)
def replace():
    around(torch, "save")
    around(torch.autograd, "_engine_run_backward")
    around(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__")
    around(torch.nn.Module, "train")
    around(torch.optim.SGD, "step")
    hooks.register_optimizer_step_post_hook(lambda *_: calls.append("hook"))
def everything():
    for _ in torch.utils.data.DataLoader(torch.randn(4, 8)): train(1)
    model.eval(); model.train()
    torch.save(model.state_dict(), sys.argv[0] + ".pt")
everything()
replace()
everything()
for name in ("save", "train"):
    owner = torch if name == "save" else torch.nn.Module
    setattr(owner, name, getattr(owner, name).__closure__[1].cell_contents)  # as a patch is undone
hooks._global_optimizer_post_hooks.clear()  # a framework that throws out our hooks
train(2)
print(sorted((name, calls.count(name)) for name in set(calls)))
"""
    run = train(tmp_path, text)
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")],
        capture_output=True,
        env=environment(),
        check=True,
    )
    assert (run.code, run.out) == (0, alone.stdout), run.err
    assert run.steps() == {FIRST: 8}


# Bytes


def test_a_step_takes_700_bytes_at_most(tmp_path: Path) -> None:
    text = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
layers = [layer for _ in range(12) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
optimizer = torch.optim.AdamW(model.parameters())
for n, batch in enumerate(DataLoader(torch.randn(4000, 64), batch_size=8)):
    if n == 400: break
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    run = recorded(tmp_path / "run", torchrun, "--nproc-per-node", "2", script(tmp_path, text))
    assert run.code == 0, run.err
    assert run.steps() == {FIRST: 400, "rank-00001.attempt-0": 400}
    for path in (tmp_path / "run").glob("rank-*.cfr"):
        assert path.stat().st_size <= 700 * 400


# Answers of the command itself


def test_the_answer_as_json_follows_the_commands_own_output(tmp_path: Path) -> None:
    words = record_words(tmp_path / "run", sys.executable, "-c", "print('mine')")
    words[words.index("record") + 1 : words.index("--out")] = ["-o", "json"]
    done = subprocess.run(words, capture_output=True, env=environment(), check=True)
    first, _, rest = done.stdout.partition(b"\n")
    assert first == b"mine"
    answer = json.loads(rest)
    assert (answer["schema"], answer["ranks"]) == ("computeflow.record/1", 0)
    assert answer["folder"] == str(tmp_path / "run")


def attach(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "computeflow", "record", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(**more),
        check=False,
    )


def test_a_process_that_runs_already_is_looked_at(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = TRAIN + "def load(): time.sleep(0.05)\nprint(flush=True)\nwhile True: load(); train(1)\n"
    command = [sys.executable, script(tmp_path, text), "--token", "hunter2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            folder = tmp_path / "run"
            done = attach("--attach", str(process.pid), "--seconds", "2", "--out", str(folder))
            assert process.poll() is None
        finally:
            process.kill()
    if "no right to read" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert "load (train.py:" in done.stdout
    kept = json.loads((folder / f"attached-{process.pid}.json").read_text())
    assert kept["places"][0]["code"].startswith("load (train.py:")
    assert kept["places"][0]["share"] > 0.5
    assert sum(place["share"] for place in kept["places"]) == pytest.approx(1)
    assert (kept["samples"] > 10, kept["threads"] > 0, kept["resident_bytes"] > 10**7) == (
        True,
    ) * 3
    assert "hunter2" not in str(kept)


def test_what_cannot_be_attached_is_said_in_a_sentence(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            no_python = attach("--attach", str(process.pid), "--seconds", "1")
        finally:
            process.kill()
    for done, reason in (
        (no_python, "is it Python?"),
        (attach("--attach", "999999999"), "no such process"),
        (attach("--attach", "0"), "no such process"),
        (attach("--attach", "1", "--", "x"), "takes no command"),
        (attach("--attach", "1", "--seconds", "1e9"), "1 to 3600"),
        (attach("--seconds", "3", "--", "true"), "belongs to --attach"),
        (attach(), "needs a command"),
        (attach("--no-such-option", "--", "true"), "no-such-option"),
    ):
        assert done.returncode == 2
        assert reason in done.stderr or "no right to read" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.long
def test_workers_of_ray_record_by_their_runtime_env(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    text = f"""
import ray
from computeflow import recorder
kept = recorder.ray_runtime_env({str(tmp_path / "run")!r}, {{"env_vars": {{"MINE": "7"}}}})
ray.init(num_cpus=2, include_dashboard=False, runtime_env=kept, log_to_driver=False)
@ray.remote
class Trainer:
    def train(self, rank):
        import os, torch
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        return os.environ["MINE"]
trainers = [Trainer.remote() for _ in range(2)]
print(ray.get([each.train.remote(rank) for rank, each in enumerate(trainers)]))
import time; time.sleep(1)  # a worker ends by a kill
"""
    done = subprocess.run(
        [sys.executable, script(tmp_path, text)],
        capture_output=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"['7', '7']\n"
    run = Run(0, b"", b"", files_of(tmp_path / "run"))
    assert run.steps() == {FIRST: 5, "rank-00001.attempt-0": 5}
