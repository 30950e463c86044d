"""A plan as the files that frameworks and launchers take, and such files back into a layout."""
