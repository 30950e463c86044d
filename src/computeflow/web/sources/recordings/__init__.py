"""Run folders of `computeflow record`, and whatever else `audit` reads: `recorded_runs` first."""
