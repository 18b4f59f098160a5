"""What a process looks like from outside of the library: all that an embedded engine must leave as it was.

Values are of plain types, so that two snapshots can be compared and a difference reads well.
"""

import asyncio
import atexit
import decimal
import faulthandler
import functools
import gc
import hashlib
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import opentelemetry.metrics._internal as metrics_api
import opentelemetry.propagate as propagation
import opentelemetry.trace as trace_api

Snapshot = dict[str, Any]

OWN_THREADS = "limelight-"
"""How the names of an engine's threads begin."""
OWN_TASKS = ("limelight-", "limelight.")
"""And those of its tasks: the owner's, and those that anyio names by the function that they run."""


def snapshot() -> Snapshot:
    """Everything; in a running loop also that loop."""
    taken: Snapshot = {
        "environment": dict(os.environ),
        "logging": _loggers(),
        "signals": {
            number.name: _named(signal.getsignal(number)) for number in signal.Signals if _can_be_handled(number)
        },
        "telemetry": _telemetry(),
        "warnings": [repr(entry) for entry in warnings.filters] + [_named(warnings.showwarning)],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "native threads": sorted(_native_threads()),
        "children": _children(),
        "descriptors": _descriptors(),
        "exit callbacks": atexit._ncallbacks(),
        "interpreter": _interpreter(),
        "process": _process(),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), len(gc.callbacks)],
        "chance": _chance(),
        "numbers": _floating_point(),
        "torch": _torch(),
    }
    return taken | _loop()


def differences(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """What is not equal, as (before, after)."""
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def without_what_is_ours(taken: Snapshot) -> Snapshot:
    """A snapshot from inside an engine, without its threads and tasks. Torch has threads of its own, without a name."""
    threads = [name for name in taken["threads"] if not name.startswith(OWN_THREADS)]
    tasks = [name for name in taken["tasks"] if not name.startswith(OWN_TASKS)]
    return taken | {"threads": threads, "tasks": tasks, "native threads": None}


def _named(value: Any) -> str:
    """A name that is the same in every look at the same thing."""
    if isinstance(value, functools.partial):  # asyncio's own for SIGINT, whose repr tells the line that runs
        value = value.func
    return getattr(value, "__qualname__", None) or repr(value)


def _loggers() -> dict[str, Any]:
    """Loggers that anybody has configured, and the switches of the module."""
    everyone = {"root": logging.getLogger()} | {
        name: logger for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)
    }
    configured = {
        name: [list(map(repr, logger.handlers)), logger.level, logger.propagate, logger.disabled, len(logger.filters)]
        for name, logger in everyone.items()
    }
    as_made = [[], logging.NOTSET, True, False, 0]
    switches = [logging.root.manager.disable, logging.raiseExceptions, logging.lastResort]
    kinds = [logging.getLoggerClass(), logging.getLogRecordFactory()]
    changed = {name: state for name, state in configured.items() if name == "root" or state != as_made}
    return changed | {"module": list(map(repr, [*switches, *kinds]))}


def _can_be_handled(number: signal.Signals) -> bool:
    return number not in (signal.SIGKILL, signal.SIGSTOP)


def _telemetry() -> list[str]:
    """The global providers of OpenTelemetry; `None`: nobody has set one, which asking by the API's function may do."""
    return [
        repr(trace_api._TRACER_PROVIDER),
        repr(metrics_api._METER_PROVIDER),
        repr(propagation.get_global_textmap()),
        repr(trace_api.get_current_span()),
    ]


def _native_threads() -> list[str]:
    """Names of all threads of the process, those that Python knows nothing of included."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # it ended just now
            continue
    return names


def _children() -> list[str]:
    return sorted(
        child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
    )


def _descriptors() -> list[str]:
    """What they lead to, without the number of sockets and pipes; the folder that lists them is left out."""
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(entry.readlink()))
        except OSError:  # the one that lists
            continue
    return sorted(target for target in targets if not target.startswith("/proc/"))


def _interpreter() -> dict[str, Any]:
    return {
        "path": list(sys.path),
        "meta path": list(map(_named, sys.meta_path)),
        "path hooks": len(sys.path_hooks),
        "hooks": [_named(hook) for hook in (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook)],
        "streams": [repr(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()],
        "tracing": [
            sys.gettrace(),
            sys.getprofile(),
            faulthandler.is_enabled(),
            sys.get_coroutine_origin_tracking_depth(),
        ],
        "thread size": threading.stack_size(),
        "decimal": repr(decimal.getcontext()),
        "socket timeout": socket.getdefaulttimeout(),
    }


def _process() -> dict[str, Any]:
    mask = os.umask(0)
    os.umask(mask)
    return {
        "folder": str(Path.cwd()),
        "mask": mask,
        "processors": sorted(os.sched_getaffinity(0)),
        "limits": [
            resource.getrlimit(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CORE)
        ],
        "locale": locale.setlocale(locale.LC_ALL),
        "timers": [
            signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }


def _chance() -> list[str]:
    """The states of global generators, which belong to the host."""
    states = [repr(random.getstate())]
    if "numpy" in sys.modules:
        states.append(repr(sys.modules["numpy"].random.get_state()))
    return [hashlib.sha256(state.encode()).hexdigest() for state in states]


def _floating_point() -> list[bool]:
    """Whether numbers below the normal range are kept, in Python and in numpy."""
    tiny = sys.float_info.min / 4
    kept = [tiny > 0.0 and tiny * 2.0 > tiny]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        kept.append(bool((numpy.full(64, 1e-40, numpy.float32) * numpy.float32(0.5)).all()))
        kept.append(numpy.geterr())
    return kept


def _torch() -> dict[str, Any] | None:
    """What is global in torch, where somebody has imported it; looking imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return {
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "gradients": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
        "defaults": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "deterministic": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        ],
        "precision": [torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32],
        "attention": [torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()],
        "autocast": [torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))],
        "generator": hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest(),
        "denormals": bool((torch.full((64,), 1e-40) * 0.5).all()),
        "printing": repr(torch._tensor_str.PRINT_OPTS),
    }


def _loop() -> Snapshot:
    """The running event loop and its tasks, the asking one aside."""
    policy = {"loop policy": repr(asyncio.get_event_loop_policy())}
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return policy | {"tasks": [], "loop": None}
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return policy | {
        "tasks": sorted(task.get_name() for task in tasks if task is not None),
        "loop": [
            repr(loop.get_exception_handler()),
            repr(loop.get_task_factory()),
            loop.get_debug(),
            repr(getattr(loop, "_default_executor", None)),
            [_named(hook) for hook in sys.get_asyncgen_hooks()],
            len(loop._signal_handlers) if hasattr(loop, "_signal_handlers") else None,
        ],
    }
