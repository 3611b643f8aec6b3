"""A process of the suite that uses the models: `python -m tests.faults.process MODULE OPTIONS`.

It calls `main` of a module of this package with the options, an object of JSON.
"""

import json
import sys
from importlib import import_module

import django

if __name__ == "__main__":
    django.setup()
    import_module(f"tests.faults.{sys.argv[1]}").main(**json.loads(sys.argv[2]))
