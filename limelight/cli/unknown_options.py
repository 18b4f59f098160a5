"""What to type instead of an option that there is not: a slip, or the word of another server."""

import difflib
from collections.abc import Collection, Sequence

INSTEAD = {
    "--model-path": "the model needs no option: limelight serve MODEL",
    "--tokenizer": "leave it out: the tokenizer comes with the model",
    "--quantization": "leave it out: the files of the model say how they are quantised",
    "--trust-remote-code": "leave it out: code from a model's repository is never run",
    "--mem-fraction-static": "use --gpu-memory-utilization SHARE, or --kv-cache-memory SIZE",
    "--tensor-parallel-size": "leave it out: a model runs on one device",
    "--n-gpu-layers": "use --device cuda: a model runs on one device",
    "--ctx-size": "use --max-model-len TOKENS",
    "--context-length": "use --max-model-len TOKENS",
    "--parallel": "use --max-num-seqs N",
    "--enable-lora": "leave it out: --lora NAME=PATH is enough",
    "--lora-modules": "use --lora NAME=PATH",
    "--lora-paths": "use --lora NAME=PATH",
    "--speculative-config": "use --num-speculative-tokens N",
    "--enable-prefix-caching": "leave it out: it is on (--no-prefix-caching ends it)",
    "--no-enable-prefix-caching": "use --no-prefix-caching",
    "--allowed-origins": "use --cors-origin ORIGIN",
    "--hf-token": "set the environment variable HF_TOKEN",
    "--alias": "use --served-model-name NAME",
}
"""Options of vLLM, SGLang and llama.cpp that people bring along."""

SHORT = {
    "-q": "--quantization",
    "-tp": "--tensor-parallel-size",
    "-c": "--ctx-size",
    "-ngl": "--n-gpu-layers",
    "-np": "--parallel",
    "-a": "--alias",
}


def complaint(unknown: Sequence[str], known: Collection[str]) -> str:
    """One sentence about the arguments that nothing takes, with what to type instead where that can be told.

    Args:
        unknown: the arguments, in their order.
        known: all options of the command.
    """
    told = f"unrecognized arguments: {' '.join(unknown)}"
    for argument in unknown:
        name = argument.partition("=")[0]
        name = SHORT.get(name, name)
        if name in INSTEAD:
            return f"{told}; {INSTEAD[name]}"
        if name.startswith("--") and (close := difflib.get_close_matches(name, known, n=1, cutoff=0.7)):
            return f"{told}; did you mean {close[0]}?"
    return told
