"""Record the JAX profile in tests/data/xplane: a small training loop on the host's CPU.

    python -m benchmarks.record_xplane tests/data/xplane/cpu_mlp.xplane.pb.gz

Needs jax (pip install jax). Host tracing is kept low and Python's own calls are off: the file is small.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = 5
BATCH, WIDTH, LAYERS = 256, 512, 3


def record(target: Path) -> None:
    import jax
    import jax.numpy as jnp

    def loss(weights: list[Any], x: Any, y: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    @jax.jit  # type: ignore[untyped-decorator]
    def train_step(weights: list[Any], x: Any, y: Any) -> tuple[list[Any], Any]:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    keys = jax.random.split(jax.random.key(0), LAYERS + 2)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[:LAYERS]]
    x, y = (jax.random.normal(key, (BATCH, WIDTH)) for key in keys[LAYERS:])
    weights, value = train_step(weights, x, y)
    value.block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    options.enable_hlo_proto = False  # the programs, with paths of source files
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for step in range(STEPS):
                with jax.profiler.StepTraceAnnotation("train", step_num=step):
                    weights, value = train_step(weights, x, y)
                    value.block_until_ready()
        (profiles,) = Path(folder).rglob("*.xplane.pb")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(profiles.read_bytes())
    print(f"{target}: {target.stat().st_size:,} bytes; jax {jax.__version__}")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
