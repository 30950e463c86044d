"""Small distributed training scripts with one planted fault each, recorded rank by rank."""
