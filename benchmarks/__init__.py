"""Long proofs and comparisons; each writes its report to benchmarks/reports."""
