"""Recordings of several ranks over gloo in other people's frameworks, with the truth beside them.

`cases` lists what is recorded, `record` makes it again; the scripts are in `data_parallel`,
`sharded`, `frameworks`, `pipelines` and `tensor_parallel`.
"""
