"""Shell scripts as people keep them, read and never run: `script.launch_words`."""
