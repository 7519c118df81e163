"""llama.cpp's server of the xllamacpp wheel as a program: `python -m slipstream.engines.llamacpp_child FIELDS PARENT`.

FIELDS is a JSON object: see `llamacpp_settings.Fields`. PARENT is the number of the process that starts it. It runs in
a process of its own, since two engines in one process slow each other down: with more OpenMP threads than cores,
libgomp's barriers put them to sleep.
"""

from __future__ import annotations

import json
import os
import sys
import time

from .llamacpp_settings import parameters

LOOK_S = 1.0


def main() -> None:
    """Serves until a signal ends it, or whoever started it has gone, which may be before this line."""
    parent = int(sys.argv[2])
    if os.getppid() != parent:
        return
    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(xllamacpp, json.loads(sys.argv[1])))
    except RuntimeError:
        sys.exit(1)  # its own lines stand above
    print(server.listening_address, flush=True)
    while os.getppid() == parent:
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
