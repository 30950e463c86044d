"""What takes long to compute, in processes beside the server: `workbench` first.

`tasks` is what the processes compute.
"""
