"""llama.cpp's own HTTP server in a process of its own: prints its address, and ends with standard input.

python benchmarks/llama_server.py MODEL.gguf --threads 1 --slots 8 --context 2048
"""

from __future__ import annotations

import argparse
import sys

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=2048, help="of each slot")
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.n_parallel, params.n_ctx, params.port = given.slots, given.slots * given.context, 0
    params.fit_params = False
    params.cont_batching = True
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = given.threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
