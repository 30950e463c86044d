"""Profiles of JAX and XLA (`*.xplane.pb`)."""
