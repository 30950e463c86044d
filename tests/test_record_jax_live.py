"""JAX under `record`, without a change to the code: steps, compiling, waits, and jitted functions that
stay what they are.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recorded_runs import FIRST, environment, recorded, script

pytestmark = pytest.mark.live
pytest.importorskip("jax")
MODEL = """
import functools, time
import jax, jax.numpy as jnp
def loss_of(params, x, y):
    return ((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2).mean()
def update(params, momentum, grads):
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum
def batch(key):
    x = jax.random.normal(key, (64, 32))
    return x, x[:, :1]
key = jax.random.key(0)
params = {"a": jax.random.normal(key, (32, 64)) * 0.01, "b": jnp.ones((64, 1)) * 0.01}
momentum = jax.tree.map(jnp.zeros_like, params)
"""
ONE_FUNCTION = """
split = jax.jit(jax.random.split)
@functools.partial(jax.jit, donate_argnums=(0,), static_argnames=("noise",))
def train_step(state, x, y, *, noise=0.0):
    loss, grads = jax.value_and_grad(loss_of)(state[0], x, y)
    return update(*state, grads), loss
eval_step = jax.jit(loss_of)
state = (params, momentum)
for n in range(20):
    key, mine = split(key)
    x, y = batch(mine)
    state, loss = train_step(state, x, y, noise=0.5)
    if n % 5 == 4:
        for _ in range(6): float(eval_step(state[0], x, y))
"""
TWO_FUNCTIONS = """
grads_of, updated = jax.jit(jax.value_and_grad(loss_of)), jax.jit(update)
for n in range(20):
    loss, grads = grads_of(params, *batch(jax.random.key(n)))
    params, momentum = updated(params, momentum, grads)
    float(loss)
"""
UPDATED_BY_HAND = """
grads_of, other = jax.jit(jax.grad(loss_of)), jax.jit(lambda x: x + 1)
for n in range(20):
    grads = grads_of(params, *batch(jax.random.key(n)))
    other(jnp.ones(1))
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
"""
JITTED_ANEW = """
for n in range(20):
    def step(params, momentum, x, y):
        return update(params, momentum, jax.grad(loss_of)(params, x, y))
    params, momentum = jax.jit(step)(params, momentum, *batch(jax.random.key(n)))
"""
ANNOTATED = """
@jax.jit
def step(params, momentum, x, y):
    return update(params, momentum, jax.grad(loss_of)(params, x, y))
for n in range(20):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        for micro in range(3):
            params, momentum = step(params, momentum, *batch(jax.random.key(n)))
    with jax.profiler.StepTraceAnnotation("eval", step_num=n):
        pass
"""
TOLD = """
from computeflow import recorder
step = jax.jit(lambda params, momentum, x, y: update(params, momentum, jax.grad(loss_of)(params, x, y)))
for n in range(20):
    with recorder.step():
        with recorder.phase("data"):
            time.sleep(0.02)
            x, y = batch(jax.random.key(n))
        for micro in range(3):
            params, momentum = step(params, momentum, x, y)
"""


def steps_of(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    run = recorded(tmp_path / "run", sys.executable, script(tmp_path, MODEL + text), quiet=False)
    assert run.code == 0, run.err
    assert list(run.files) == [FIRST], run.err
    assert b"Error" not in run.err
    assert not any(record["k"] == "x" for record in run.files[FIRST])
    start = run.files[FIRST][0]
    assert (start["device"], start["framework"], "jax" in start["versions"]) == (
        "cpu",
        ["jax"],
        True,
    )
    return [record for record in run.files[FIRST] if record["k"] == "s"]


@pytest.mark.parametrize(
    "text",
    [ONE_FUNCTION, TWO_FUNCTIONS, UPDATED_BY_HAND, JITTED_ANEW, ANNOTATED, TOLD],
    ids="one-function two-functions updated-by-hand jitted-anew annotated told".split(),
)
def test_steps_of_a_jax_loop_are_counted(tmp_path: Path, text: str) -> None:
    steps = steps_of(tmp_path, text)
    assert [step["n"] for step in steps] == list(range(1, 21))
    assert steps[0]["t"] >= steps[0]["d"]
    for before, after in itertools.pairwise(steps):
        assert abs(after["t"] - after["d"] - before["t"]) <= 2  # one begins where the other ended


def test_compiling_lies_in_the_first_step_and_waits_are_seen(tmp_path: Path) -> None:
    first, *others = steps_of(tmp_path, ONE_FUNCTION)
    assert first["u"].count("compile") >= 3
    assert first["d"] > 5 * sorted(step["d"] for step in others)[10]
    assert sum("compile" in step.get("u", ()) for step in others) == 1  # the evaluation


def test_a_named_wait_for_data_is_its_own_phase(tmp_path: Path) -> None:
    for step in steps_of(tmp_path, TOLD)[2:]:
        spans = [step["p"][at : at + 3] for at in range(0, len(step["p"]), 3)]
        assert sum(length for letter, _, length in spans if letter == "d") >= 20_000


SAME = """
import copy, functools, inspect
import jax, jax.export, jax.numpy as jnp, numpy as np
@jax.jit
def f(x):
    "doc"
    return x * 2
@jax.jit(static_argnums=1)
def g(x, n): return f(x) ** n
class Model:
    @functools.partial(jax.jit, static_argnums=0)
    def apply(self, x): return f(x) + 1
x = jnp.arange(3.0)
def refused(act):
    try: return act()
    except Exception as error: return type(error).__name__
for each in (
    f.__name__, f.__doc__, inspect.signature(g), g(x, 2), Model().apply(x), jax.vmap(f)(x),
    jax.grad(lambda x: f(x).sum())(x), jax.jit(f)(x), f.lower(x).compile()(x), f.trace(x).jaxpr,
    f.eval_shape(x), jax.eval_shape(f, x), jax.make_jaxpr(g, static_argnums=1)(x, 2),
    isinstance(f, jax.stages.Wrapped), jax.value_and_grad(jax.jit(lambda x: (x**2).sum()))(x),
    jax.jvp(f, (x,), (x,)), jax.checkpoint(f)(x), jax.hessian(lambda x: f(x).sum())(x),
    jax.lax.scan(jax.jit(lambda c, x: (c + x, c)), 0.0, x), jax.linearize(f, x)[0],
    jax.tree.leaves({"f": f})[0] is f, {f: 1}[f], jax.jit(jax.vmap(f))(x), copy.copy(f)(x),
    repr(f)[:15], f._cache_size(), jax.pmap(lambda x: x + 1)(x[None]), f == f,
    jax.jit(f, donate_argnums=0)(x + 1), float(x[0]), np.asarray(x), x.tolist(), x[1].item(),
    jax.block_until_ready({"a": x}), x.block_until_ready(), jax.device_get(x), bool(x[0] == 0),
    f.clear_cache(), jax.export.export(f)(x).call(x), refused(lambda: f("a")),
    refused(lambda: jax.jit(lambda x: float(x))(x)), refused(lambda: jax.jit(lambda x: 1 / 0)(x)),
    refused(lambda: f.no_such_thing), refused(lambda: jax.jit(7)),
): print(each)
"""


def test_a_jitted_function_stays_what_it_is(tmp_path: Path) -> None:
    command = [sys.executable, script(tmp_path, SAME)]
    alone = subprocess.run(command, capture_output=True, env=environment(), check=True)
    under = recorded(tmp_path / "run", *command)
    assert (under.out, under.err, under.code) == (alone.stdout, alone.stderr, 0)


def test_faults_of_our_own_are_not_seen_by_jax(tmp_path: Path) -> None:
    text = """
from computeflow.recorder import jax_hooks
def fails(*_): raise ValueError("ours")
jax_hooks.JittedCalls._look_at_results = jax_hooks.JittedCalls._look_at_arguments = fails
step = jax.jit(lambda x: x + 1)
for n in range(30): x = step(jnp.ones(3))
print(x)
"""
    run = recorded(tmp_path / "run", sys.executable, script(tmp_path, MODEL + text))
    assert (run.code, run.out, run.err) == (0, b"[2. 2. 2.]\n", b"")
