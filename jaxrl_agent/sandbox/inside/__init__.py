"""What runs inside a sandbox: standard library only, Python 3.9 or newer, nothing of the rest of the package.

The supervisor sends these files as text. `runner.py` is process 1; `code.py` is the one fork that runs a candidate's
program; every other kind of worker has a module of its name here with a class `Handler`, whose `__init__(setup, files)`
gets a JSON object and a mapping of names to paths, and whose `handle(request)` turns one JSON object into another.
"""
