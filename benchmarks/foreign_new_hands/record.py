"""Record the scripts: traces with the mistake, times without a profiler with and without it.

    python -m benchmarks.foreign_new_hands.record OUT --half fit|judge [--seconds 540] [--tiny]

OUT gets `truth-HALF.csv` and at most three archives of traces. All options are those of
`benchmarks.foreign_more_styles.record`.
"""

from __future__ import annotations

import sys

from benchmarks.foreign_more_styles.record import Collection, main

_SCRIPTS = {
    "bart": ("seq2seq trainer", "encoder-decoder"),
    "byol": ("generator of batches", "self-supervised"),
    "detect": ("plain", "detection"),
    "dit": ("plain, endless", "diffusion"),
    "dpo": ("trainer, subclassed", "preference"),
    "forecast": ("lightning, data module", "time series"),
    "gnn": ("plain", "graph"),
    "mistral": ("fabric", "decoder"),
    "mlm": ("epoch function", "encoder"),
    "ppo": ("rollouts and updates", "reinforcement"),
    "ssm": ("plain class", "state space"),
    "tabular": ("estimator", "tabular"),
    "teacher": ("engine with events", "distillation"),
    "wav2vec": ("trainer", "speech"),
}
NEW_HANDS = Collection(
    package="benchmarks.foreign_new_hands",
    archive="new-hands",
    scripts=_SCRIPTS,
    models="Bart Phi Mistral Roberta Wav2Vec2",
    fitted=frozenset(sorted(_SCRIPTS)[::2]),
    together=30_000_000,
)


if __name__ == "__main__":
    sys.exit(main(NEW_HANDS))
