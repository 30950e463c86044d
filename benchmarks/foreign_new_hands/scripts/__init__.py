"""One script a module: `CASES` is what it is recorded with, `train` runs it."""
