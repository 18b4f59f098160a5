"""llama.cpp's server, out of the package xllamacpp: `python -m benchmarks.peers.llama_cpp_peer MODEL.gguf PORT`."""

import sys

import xllamacpp

NUM_SLOTS, CONTEXT = 32, 4352


def main(model: str, port: int) -> None:
    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.port = port
    settings.n_parallel = NUM_SLOTS
    settings.n_ctx = NUM_SLOTS * CONTEXT
    settings.cont_batching = True
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
