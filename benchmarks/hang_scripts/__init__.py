"""Plain distributed scripts, as users write them, each with a place for every kind of hang."""
