"""The frameworks' own parsers, which check exported files.

Each module runs in an environment of its own (`environments`) and answers through `answers`; `checks`
says which format goes to which.
"""
