"""The live page of a run: `relaax web` and `relaax run --web`.

Begin with `page` (what the page shows) and `server` (how it is served). `static` has the page and its chart library.
"""
