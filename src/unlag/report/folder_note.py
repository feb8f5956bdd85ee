"""The README of a fixed model's folder: how to run it, with unlag and without, in code that works as it stands."""

from __future__ import annotations

from collections.abc import Mapping

from unlag.model.deployment import MODEL
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.runtimes.onnxruntime.nvidia import PROVIDER_PREFIX, providers_of, short_name
from unlag.runtimes.onnxruntime.options import CONFIG_PREFIX, LEVELS, SWITCH, provider_name
from unlag.runtimes.onnxruntime.qualcomm import CONTEXT, PACKAGE, is_asked
from unlag.runtimes.onnxruntime.qualcomm import session_code as npu_code

FENCE = "```"

_NAMES = frozenset({
    "threads", "inter_threads", "execution", "optimization", "disable", "provider", "arena", "memory_pattern",
    "spinning", "device", "tf32", "attention", "nhwc", "trt_fp16", "trt_bf16",
})  # fmt: skip
"""Options of a spec that have their counterpart in plain ONNX Runtime."""


def folder_note(variant: Variant, threads: int, replicas: int = 1) -> str:
    """What ``README.md`` says, as Markdown."""
    lines = [
        "Written by `unlag fix`: `report.html` shows what was measured, `run.json` holds every number.",
        'With unlag: `unlag.load("this folder").run({"input name": array})`.'
        + ("" if variant.runtime == DEFAULT_RUNTIME else f" Its runtime is {variant.runtime}."),
    ]
    if replicas > 1:
        each = "1 thread on a core" if threads == 1 else f"{threads} threads on cores"
        lines.append(f"It gets most done in {replicas} processes, each with {each} of its own.")
    if is_asked(short_name(variant.options)):
        lines += _on_a_device(variant.options)
    elif variant.runtime == DEFAULT_RUNTIME:
        lines += ["Without, in this folder:", "", f"{FENCE}python", *session_code(variant.options, threads), FENCE]
        others = [f"{name}={value}" for name, value in variant.options.items() if not _has_code(name)]
        lines += [f"What only `unlag.load` sets: {', '.join(others)}."] if others else []
    return "\n".join(lines) + "\n"


def _on_a_device(options: Mapping[str, str]) -> list[str]:
    return [
        f"Without, on a device (`pip install onnxruntime {PACKAGE}`), here. {CONTEXT} holds what was compiled for the",
        f"chip that `run.json` names; for another chip open {MODEL}, which is compiled when it is opened.",
        "",
        f"{FENCE}python",
        *npu_code(options, CONTEXT),
        FENCE,
    ]


def session_code(options: Mapping[str, str], threads: int) -> list[str]:
    """Python that opens the model in plain ONNX Runtime with these options of a spec, and only these."""
    extra = [f"options.add_session_config_entry({key!r}, {value!r})" for key, value in _entries(options).items()]
    opening = f"{MODEL!r}, options, providers={_providers(options)!r}"
    if "disable" in options:
        opening += f", disabled_optimizers={options['disable'].split('+')!r}"
    return [
        "import onnxruntime as ort",
        "options = ort.SessionOptions()",
        f"options.intra_op_num_threads = {int(options.get('threads', threads))}",
        *(line.format(value) for line, value in _attributes(options)),
        *extra,
        f"session = ort.InferenceSession({opening})",
    ]


def _providers(options: Mapping[str, str]) -> list[str | tuple[str, dict[str, str]]]:
    """Providers, with their options where they have any; without what takes more than a session to use."""
    plain = {name: value for name, value in options.items() if name not in {"io_binding", "cuda_graph"}}
    if short_name(plain) == "tensorrt":
        plain["trt_cache"] = "off"  # the folder of engines is this machine's
    made = providers_of(plain, provider_name(options.get("provider", "cpu")))
    return [(name, own) if own else name for name, own in made]


def _has_code(name: str) -> bool:
    return name in _NAMES or name.startswith((CONFIG_PREFIX, PROVIDER_PREFIX))


def _attributes(options: Mapping[str, str]) -> list[tuple[str, object]]:
    """Assignments of the session options that have an attribute of their own."""
    made: list[tuple[str, object]] = []
    if "inter_threads" in options:
        made.append(("options.inter_op_num_threads = {}", int(options["inter_threads"])))
    if options.get("execution") == "parallel":
        made.append(("options.execution_mode = ort.ExecutionMode.{}", "ORT_PARALLEL"))
    if "optimization" in options:
        made.append(
            ("options.graph_optimization_level = ort.GraphOptimizationLevel.{}", LEVELS[options["optimization"]])
        )
    if "arena" in options:
        made.append(("options.enable_cpu_mem_arena = {}", SWITCH[options["arena"]]))
    if "memory_pattern" in options:
        made.append(("options.enable_mem_pattern = {}", SWITCH[options["memory_pattern"]]))
    return made


def _entries(options: Mapping[str, str]) -> dict[str, str]:
    """Session configuration entries by their keys."""
    made = {}
    if "spinning" in options:
        made["session.intra_op.allow_spinning"] = str(int(SWITCH[options["spinning"]]))
    return made | {k.removeprefix(CONFIG_PREFIX): v for k, v in options.items() if k.startswith(CONFIG_PREFIX)}
