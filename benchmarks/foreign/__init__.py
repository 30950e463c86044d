"""Training code as others write it, with and without a mistake: what the diagnosis is judged on.

`python -m benchmarks.foreign.record OUT` runs it on a machine with a GPU and transformers, accelerate,
pytorch-lightning and torchvision. `jobs` are the models, `mistakes` what goes wrong in them, `loops`
the training loops; nothing here imports ComputeFlow. `truth.csv` has what was measured, `traces` some
of the recordings that things may be fitted to (README.md).
"""
