"""The projects' own parsers, asked whether they take a file.

Each module runs in an environment of its own (`environments`) and answers through `answers`; `checks`
says which format goes to which.
"""
