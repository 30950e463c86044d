"""Findings while runs go on: windows of live runs, the rule book over them, and what is open."""
