"""Files of the user: how much of one is read, how one is written, which names are taken from one."""
