"""Logs that training frameworks write; start with `source.LogSource`.

`reading` gives lines with their rank and time, `frameworks` what a line says, `story` what happened,
`timeline` where the time went.
"""
