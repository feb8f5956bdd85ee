"""The options of a spec, and the runtime's own settings that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from unlag.errors import UsageError, did_you_mean
from unlag.model.variant import Variant
from unlag.runtimes.contract import Option
from unlag.runtimes.onnxruntime import nvidia, qualcomm

if TYPE_CHECKING:
    import onnxruntime as ort

LEVELS = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
SWITCH = {"on": True, "off": False}
CONFIG_PREFIX = "config."
LOGS = {"info": 1, "warning": 2, "error": 3}
"""Severities. By default errors only: warnings about serialized graphs would drown the report."""

OPTIONS = (
    Option("threads", "1, 2, ...", "threads inside one operator"),
    Option("inter_threads", "1, 2, ...", "operators side by side; with execution=parallel"),
    Option("execution", "sequential, parallel", "how operators are scheduled"),
    Option("optimization", ", ".join(LEVELS), "graph optimization level; default all"),
    Option("disable", "PASS+PASS...", "single optimizer passes switched off by name"),
    Option("provider", "cpu, cuda, ...", "execution provider; the CPU stays as the fallback"),
    Option("arena", "on, off", "memory arena of the CPU allocator"),
    Option("memory_pattern", "on, off", "reuse of one allocation plan"),
    Option("spinning", "on, off", "idle threads spin instead of sleeping"),
    Option("log", ", ".join(LOGS), "what the runtime prints; default error"),
    Option("config.KEY", "VALUE", "any session configuration entry, such as config.session.disable_prepacking=1"),
    *nvidia.OPTIONS,
)


def _whole_number(name: str, value: str) -> None:
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"option {name}={value} is not a whole number above zero")


def _one_of(values: Mapping[str, object]) -> Callable[[str, str], None]:
    def check(name: str, value: str) -> None:
        if value not in values:
            raise UsageError(f"option {name}={value} is not one of {', '.join(values)}")

    return check


def _any_text(_name: str, _value: str) -> None:
    """Names of passes are the runtime's own; it ignores unknown ones."""


def _check_provider(_name: str, value: str) -> None:
    if not qualcomm.check_available(value):
        nvidia.check_available(value, provider_name(value))


_CHECKS: dict[str, Callable[[str, str], None]] = {
    "threads": _whole_number,
    "inter_threads": _whole_number,
    "execution": _one_of({"sequential": 0, "parallel": 0}),
    "optimization": _one_of(LEVELS),
    "disable": _any_text,
    "provider": _check_provider,
    "arena": _one_of(SWITCH),
    "memory_pattern": _one_of(SWITCH),
    "spinning": _one_of(SWITCH),
    "log": _one_of(LOGS),
}


def provider_name(text: str) -> str:
    """The runtime's name of a provider, from its short one."""
    import onnxruntime as ort  # noqa: PLC0415 - only a run that needs the runtime pays for its import

    wanted = text.lower().removesuffix("executionprovider")
    for name in ort.get_all_providers():
        if name.removesuffix("ExecutionProvider").lower() == wanted:
            return str(name)
    return text


def session_options(variant: Variant, threads: int) -> ort.SessionOptions:
    """The runtime's own object with what the variant's options say."""
    import onnxruntime as ort  # noqa: PLC0415 - only a run that needs the runtime pays for its import

    given = variant.options
    options = ort.SessionOptions()
    options.log_severity_level = LOGS[given.get("log", "error")]
    options.intra_op_num_threads = int(given.get("threads", threads))
    options.inter_op_num_threads = int(given.get("inter_threads", 0))
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[given.get("optimization", "all")])
    if given.get("execution") == "parallel":
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = SWITCH[given.get("arena", "on")]
    options.enable_mem_pattern = SWITCH[given.get("memory_pattern", "on")]
    if "spinning" in given:
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(SWITCH[given["spinning"]])))
    for key, value in given.items():
        if key.startswith(CONFIG_PREFIX):
            options.add_session_config_entry(key.removeprefix(CONFIG_PREFIX), value)
    return options


def check_options(variant: Variant) -> None:
    """Raise UsageError for unknown options, bad values and absent providers."""
    for name, value in variant.options.items():
        if name.startswith(CONFIG_PREFIX) or nvidia.is_known(name):
            continue
        check = _CHECKS.get(name)
        if check is None:
            known = [option.name for option in OPTIONS]
            hint = did_you_mean(name, known, f"options of onnxruntime: {', '.join(known)}")
            raise UsageError(f"{variant.spec}: unknown option {name!r}", hint=hint)
        check(name, value)
    nvidia.check(variant.options)
