"""Small distributed training scripts in many styles, each with planted faults."""
