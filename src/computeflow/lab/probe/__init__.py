"""What a machine really gives. `run.probe` measures, `grade` judges, `calibration` hands on.

Importing this package imports no torch; `run` does.
"""
