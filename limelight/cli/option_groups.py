"""The options of what lies below (model, engine, adapters, sampling), for all commands that take them."""

import argparse

from limelight.cli.settings import device, memory_bytes
from limelight.config import (
    CPU_KERNELS,
    DTYPES,
    KV_CACHE_DTYPES,
    MODEL_IMPLS,
    QUANTIZATIONS,
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
)

MODEL_HELP = "folder, .gguf file, hub id, or hub id:QUANT for one of its GGUF files (org/name:Q4_K_M)."


def model_options(parser: argparse.ArgumentParser) -> None:
    """The model, as the command's argument."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{MODEL_HELP} Default: SmolLM2-135M-Instruct",
    )
    model_as_option(parser)
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id")


def model_as_option(parser: argparse.ArgumentParser) -> None:
    """Add `--model`, for habits from other servers. It has a name of its own: the positional's default would win."""
    parser.add_argument("--model", "-m", dest="named_model", metavar="MODEL", help="the same as MODEL")


def inspection_options(parser: argparse.ArgumentParser) -> None:
    """What decides whether a model would run, for commands that run none."""
    parser.add_argument("--device", type=device, default="auto", metavar="DEVICE", help="where it would be computed")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="what it would be computed in")
    parser.add_argument("--cpu-kernels", choices=CPU_KERNELS, default="auto", help="what would compute on the CPU")
    parser.add_argument("--quantize", choices=QUANTIZATIONS, default="auto", help="what weights would be kept in")
    parser.add_argument("--model-impl", choices=MODEL_IMPLS, default="auto", help="whose layers would run")


def engine_options(parser: argparse.ArgumentParser) -> None:
    """How the model runs."""
    parser.allow_abbrev = False  # "--max-model 4" is a slip, and not a short form of --max-model-len
    group = parser.add_argument_group("engine")
    group.add_argument("--served-model-name", metavar="NAME", help="the model's name in the API. Default: its own")
    group.add_argument(
        "--device",
        type=device,
        default="auto",
        metavar="DEVICE",
        help="where to compute: cpu, cuda, cuda:1 for the second GPU, or auto for a GPU where one does",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="what to compute in. The kernels in C compute in float32: to them it is what keys and values are kept in, "
        "bfloat16 for auto",
    )
    group.add_argument(
        "--cpu-kernels",
        choices=CPU_KERNELS,
        default="auto",
        help="what computes on the CPU: kernels in C for a kind of processor, or PyTorch (reference)",
    )
    group.add_argument(
        "--num-threads", type=int, metavar="N", help="threads that compute on the CPU. Default: the cores there are"
    )
    group.add_argument(
        "--quantize",
        choices=QUANTIZATIONS,
        default="auto",
        help="what weights are kept in: as stored (auto), expanded (none), or made smaller while loading: int8 and "
        "int4 on the CPU, fp8 and int4 on a GPU",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        default=None,
        help="start only if a request gets the same tokens whatever else runs",
    )
    group.add_argument(
        "--model-impl",
        choices=MODEL_IMPLS,
        default="auto",
        help="whose layers to run: Limelight's own, those of transformers (any decoder), or its own where it has them",
    )
    group.add_argument(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="context length. Default: the model's, as far as memory goes",
    )
    group.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="sequences that run at once. Default: 64, on a GPU 256"
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="tokens computed in one step at the most. Default: 512, on a GPU 8192",
    )
    group.add_argument(
        "--max-num-requests",
        type=int,
        metavar="N",
        help="requests that run and wait at once; one more is answered with 503. Default: 1024",
    )
    group.add_argument(
        "--max-queued-tokens",
        type=int,
        metavar="N",
        help="prompt tokens that may wait; a request that would make them more is answered with 503. Default: any",
    )
    group.add_argument(
        "--target-itl-ms",
        type=float,
        metavar="MS",
        help="time between two tokens of a running answer that prompts of others may not lengthen. Default: none",
    )
    group.add_argument(
        "--kv-cache-memory",
        type=memory_bytes,
        dest="kv_cache_bytes",
        metavar="SIZE",
        help="memory for keys and values: 512MiB, 2GiB or bytes. Default: a share of what is free",
    )
    group.add_argument(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default="auto",
        help="what keys and values are kept in: as --dtype (auto), or smaller; fp8 needs a GPU",
    )
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="share of a GPU's memory to take, everything included; what others use there is theirs",
    )
    group.add_argument(
        "--no-prefix-caching",
        action="store_false",
        dest="enable_prefix_caching",
        default=None,
        help="compute every prompt afresh instead of sharing equal beginnings",
    )
    group.add_argument(
        "--no-cuda-graph",
        action="store_false",
        dest="enable_cuda_graph",
        default=None,
        help="on a GPU, launch each kernel of a step by itself instead of replaying captured passes: starts sooner, "
        "takes less memory, decodes slower",
    )
    group.add_argument(
        "--num-speculative-tokens",
        type=int,
        default=0,
        metavar="N",
        help="guess up to N tokens a step by looking the last ones up in the prompt; 0 for never. Faster where answers "
        "repeat their prompt, and never another text",
    )
    group.add_argument(
        "--prompt-lookup-max", type=int, default=4, metavar="N", help="last tokens to look up for a guess, at best"
    )
    group.add_argument(
        "--prompt-lookup-min", type=int, default=2, metavar="N", help="last tokens to look up for a guess, at least"
    )
    group.add_argument(
        "--tool-call-parser",
        choices=TOOL_CALL_PARSERS,
        default="auto",
        metavar="FORMAT",
        help="how the model writes tool calls, where its chat template does not tell (auto): "
        f"{', '.join(TOOL_CALL_PARSERS[1:])}",
    )
    group.add_argument(
        "--reasoning-parser",
        choices=REASONING_PARSERS,
        default="auto",
        metavar="FORMAT",
        help="how the model marks its reasoning, where its chat template does not tell (auto): "
        f"{', '.join(REASONING_PARSERS[1:])}",
    )


def adapter_options(parser: argparse.ArgumentParser) -> None:
    """LoRA adapters."""
    group = parser.add_argument_group("LoRA adapters")
    group.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="load a LoRA adapter (a folder as peft writes it, or a hub id) that requests name as their model; repeat "
        "it for more",
    )
    group.add_argument("--max-loras", type=int, default=8, metavar="N", help="adapters that may be loaded at once")
    group.add_argument(
        "--max-lora-rank", type=int, default=64, metavar="R", help="adapters of a larger rank are refused"
    )


def sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int | None) -> None:
    """How tokens are drawn; `max_tokens` is the command's own default, None the end of the context."""
    group = parser.add_argument_group("sampling", "Whatever is left out is as the model recommends.")
    limit = "to the end of the context" if max_tokens is None else str(max_tokens)
    group.add_argument(
        "--max-tokens", type=int, default=max_tokens, metavar="N", help=f"length of the output. Default: {limit}"
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest token, 1 draws as trained")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the likeliest tokens of this total probability"
    )
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    group.add_argument(
        "--min-p", type=float, metavar="P", help="leave out tokens below P times the best one's probability"
    )
    group.add_argument("--repetition-penalty", type=float, metavar="R", help="above 1: avoid tokens that have occurred")
    group.add_argument("--presence-penalty", type=float, metavar="R", help="-2 to 2, for tokens of the output")
    group.add_argument("--frequency-penalty", type=float, metavar="R", help="-2 to 2, for each time they occur")
    group.add_argument("--seed", type=int, metavar="N", help="draw the same text every time")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; repeat it for more")
