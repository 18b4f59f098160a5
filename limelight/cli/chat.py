"""`limelight chat` and `limelight generate`: one model, one person, one terminal."""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator

from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.settings import engine_config, sampling_params
from limelight.cli.terminal import interruptible_by_the_system, printable, say
from limelight.engine import Engine, ModelLoader
from limelight.errors import EngineFailed, InvalidRequest, LimelightError
from limelight.generation import ChatPrompt, GenerationRequest, Prompt, SamplingParams, TextPrompt
from limelight.offline.background_engine import BackgroundEngine

CHAT_HELP = """\
/help           this list
/reset          forget the conversation
/system TEXT    new instructions, and forget the conversation; without TEXT, none
/exit           leave (Ctrl-D does too)
Ctrl-C          stop the answer"""


def generate(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    """Continues the prompt (or answers it, with `--chat`) on standard output.

    Raises:
        LimelightError: the model cannot be loaded, or the request failed.
    """
    text = " ".join(options.prompt) if options.prompt else _read_prompt()
    if not text:
        raise InvalidRequest("the prompt is empty; give it as an argument or on standard input")
    if options.system is not None and not options.chat:
        raise InvalidRequest("--system is given without --chat, which applies the chat template; add it")
    sampling_params(options, SamplingParams())  # a wrong value is told before the model is loaded
    prompt: Prompt = TextPrompt(text)
    if options.chat:
        prompt = ChatPrompt(messages=(*_system(options.system), {"role": "user", "content": text}))
    with _loaded(options, loader) as background:
        sampling = sampling_params(options, background.default_sampling)
        for _ in _printed(background, GenerationRequest(request_id="generate", prompt=prompt, sampling=sampling)):
            pass
    print()
    return 0


def chat(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    """Talks until `/exit` or the end of input.

    Raises:
        LimelightError: the model cannot be loaded, or the engine failed.
    """
    sampling_params(options, SamplingParams())  # a wrong value is told before the model is loaded
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives `input` a history and editing)
    with _loaded(options, loader) as background:
        sampling = sampling_params(options, background.default_sampling)
        say(f"{background.model_name}. Ctrl-C stops an answer, /help lists the commands.")
        Conversation(background, sampling, options.system).run()
    return 0


class Conversation:
    """The messages so far, and the commands that change them.

    Args:
        background: a started engine.
        sampling: for every answer.
        system: instructions that stand first, or None.
    """

    def __init__(self, background: BackgroundEngine, sampling: SamplingParams, system: str | None) -> None:
        self._background = background
        self._sampling = sampling
        self._numbers = itertools.count()
        self._messages = _system(system)

    def run(self) -> None:
        """Reads lines and answers them."""
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except KeyboardInterrupt:
                print("\n(/exit or Ctrl-D leaves)")
                continue
            except EOFError:
                print()
                return
            if line == "/exit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/help":
            print(CHAT_HELP)
        elif name == "/reset":
            self._messages = [message for message in self._messages if message["role"] == "system"]
            print("(forgotten)")
        elif name == "/system":
            self._messages = _system(rest.strip())
            print("(new instructions)" if rest.strip() else "(no instructions)")
        else:
            print(f"there is no {name}; the commands are:\n{CHAT_HELP}")

    def _answer(self, question: str) -> None:
        messages = [*self._messages, {"role": "user", "content": question}]
        request = GenerationRequest(
            request_id=f"chat-{next(self._numbers)}",
            prompt=ChatPrompt(messages=tuple(messages)),
            sampling=self._sampling,
        )
        answer = ""
        try:
            for text in _printed(self._background, request):
                answer += text
            print()
        except KeyboardInterrupt:
            print(" (stopped)")
        except EngineFailed:
            raise
        except LimelightError as error:
            print(f"\nlimelight: {error}\n(/reset forgets the conversation)")
            return
        self._messages = [*messages, {"role": "assistant", "content": answer}]


@contextlib.contextmanager
def _loaded(options: argparse.Namespace, loader: ModelLoader | None) -> Iterator[BackgroundEngine]:
    """The started engine; stopped on leaving."""
    progress = LoadingProgress()
    engine = Engine(engine_config(options), loader=loader, report=progress)
    with interruptible_by_the_system():
        try:
            background = BackgroundEngine(engine, num_at_once=1)
        finally:
            progress.close()
    try:
        yield background
    finally:
        background.stop()


def _printed(background: BackgroundEngine, request: GenerationRequest) -> Iterator[str]:
    """Prints the answer as it comes, and yields its pieces; leaving early cancels it."""
    shown = printable if sys.stdout.isatty() else str
    with contextlib.closing(background.stream(request)) as deltas:
        for delta in deltas:
            sys.stdout.write(shown(delta.text))
            sys.stdout.flush()
            yield delta.text


def _read_prompt() -> str:
    """Standard input to its end.

    Raises:
        InvalidRequest: it is not UTF-8.
    """
    if sys.stdin.isatty():
        say("type the prompt, then Ctrl-D:")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"standard input is not UTF-8 text: {error}") from None


def _system(text: str | None) -> list[dict[str, str]]:
    return [{"role": "system", "content": text}] if text else []
