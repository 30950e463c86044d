"""Who may look and who may act: the door before every route.

`guard.Guard` stands before all routes; `security.Doorkeeper` knows tokens, sessions and origins.
"""
