"""ONNX Runtime: sessions with every option in the spec, profiles in the normal form, the graph that really runs."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unlag.errors import Missing, UsageError, did_you_mean
from unlag.model.variant import Variant
from unlag.model.workload import Array, Dimension, Feed, Signature, TensorInfo
from unlag.runtimes import nvidia, qualcomm
from unlag.runtimes.contract import Inspection, Kind, Operator, Option, Placement, Profile, Session

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

_OPERATORS_OF: dict[Kind, str] = {
    "gemm": """
        MatMul Gemm Conv ConvTranspose FusedMatMul FusedGemm FusedConv NhwcFusedConv Einsum LSTM GRU RNN TransposeMatMul
        MatMulInteger ConvInteger QLinearMatMul QLinearConv QGemm DynamicQuantizeMatMul MatMulIntegerToFloat MatMulNBits
        DynamicQuantizeLSTM MatMulScale""",
    "attention": """
        Attention MultiHeadAttention QAttention GroupQueryAttention PackedAttention DecoderMaskedMultiHeadAttention""",
    "normalization": """
        LayerNormalization SkipLayerNormalization EmbedLayerNormalization BatchNormalization InstanceNormalization
        GroupNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization RMSNormalization
        LpNormalization""",
    "activation": """
        Relu Gelu BiasGelu FastGelu QuickGelu Sigmoid Tanh Erf Softmax LogSoftmax HardSigmoid HardSwish LeakyRelu Elu
        PRelu Clip Softplus BiasSoftmax QLinearSoftmax QLinearSigmoid QLinearLeakyRelu""",
    "layout": """
        Transpose Reshape Concat Split Slice Squeeze Unsqueeze Flatten Expand Tile Pad DepthToSpace SpaceToDepth
        ReorderInput ReorderOutput Gather GatherElements GatherND ScatterND ScatterElements Shape""",
    "copy": "Identity MemcpyFromHost MemcpyToHost",
    "control": "If Loop Scan",
    "cast": "Cast",
    "quantize": "QuantizeLinear DynamicQuantizeLinear",
    "dequantize": "DequantizeLinear",
    "elementwise": """
        Add Sub Mul Div Pow Sqrt Where Equal Greater Less And Or Not Neg Exp Log Abs Min Max Mod ReduceMean ReduceSum
        ReduceMax IsNaN Reciprocal QLinearAdd QLinearMul Range CumSum Sin Cos""",
}
_KINDS: dict[str, Kind] = {name: kind for kind, names in _OPERATORS_OF.items() for name in names.split()}

_INTEGER_OPERATORS = frozenset({
    "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat", "QAttention", "DynamicQuantizeLSTM", "QLinearAdd", "QLinearMul",
})  # fmt: skip

_TYPES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}
"""The runtime's C++ names where they differ from numpy's."""

_NO_ARRAYS = re.compile(r"bfloat16|float8.*|float4.*|u?int[24]|float.*e.*m.*")
"""Element types that the runtime's Python interface takes no arrays of."""

_ITEM_BYTES = {
    "double": 8, "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element by the runtime's C++ name; four for all others."""

_SIGNATURE_TYPE = re.compile(r"(?:optional\()?tensor\((\w+)\)")


class OnnxRuntimeSession:
    """An open session on one model."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self.signature = Signature(
            inputs=tuple(_tensor_info(x) for x in session.get_inputs()),
            outputs=tuple(_tensor_info(x) for x in session.get_outputs()),
        )

    def run(self, feed: Feed, outputs: Sequence[str] | None = None) -> Mapping[str, Array]:
        """Run once; outputs by name."""
        names = self._names if outputs is None else list(outputs)
        if not names:  # the runtime takes an empty list for all outputs
            return {}
        return dict(zip(names, self._session.run(names, dict(feed)), strict=True))

    def run_only(self, feed: Feed) -> None:
        """Run once for timing."""
        self._session.run(self._names, feed)


class OnnxRuntime:
    """The default runtime."""

    name = "onnxruntime"
    options = OPTIONS

    def missing(self) -> Missing | None:
        """Nothing: a default dependency. The reason, where somebody took it out."""
        if importlib.util.find_spec("onnxruntime") is None:
            return Missing("the package onnxruntime is not installed: pip install onnxruntime")
        return None

    def check(self, variant: Variant) -> None:
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

    def inspect(self, variant: Variant) -> Inspection:
        """Signature, table sizes and bytes on disk, from the ONNX file.

        Raises:
            UsageError: the file is missing, truncated, not ONNX, or names external data outside its folder.
        """
        # the worker imports this file too, and needs no graph library
        from unlag.model.facts import signature_of  # noqa: PLC0415
        from unlag.model.graph import embedding_limits, read_model, size_on_disk_bytes  # noqa: PLC0415

        path = Path(variant.path)
        model = read_model(path)
        return Inspection(
            signature=signature_of(model), limits=embedding_limits(model), size_bytes=size_on_disk_bytes(model, path)
        )

    def open(self, variant: Variant, threads: int) -> Session:
        """Open a session.

        Raises:
            UsageError: an option is wrong, or the runtime refuses the model.
        """
        opened = _open(variant, _session_options(variant, threads))
        session = OnnxRuntimeSession(opened)
        for info in session.signature.inputs:
            if _NO_ARRAYS.fullmatch(info.dtype):
                what = f"{variant.path} takes {info.dtype} at {info.name!r}"
                raise UsageError(f"{what}, which onnxruntime's Python can't give", hint="cast it inside of the model")
        return nvidia.bound(opened, session.signature, variant.options) or session

    def profile(self, variant: Variant, threads: int, feed: Feed, runs: int) -> Profile:
        """Times of each operator over ``runs`` runs, from the runtime's own profiler."""
        options = _session_options(variant, threads)
        with tempfile.TemporaryDirectory() as folder:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = _open(nvidia.without_recording(variant), options)
            for _ in range(runs + 1):
                session.run(None, dict(feed))
            events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
        return _normal_form(events, runs)

    def executed_graph(self, variant: Variant, threads: int, folder: Path) -> Path | Missing:
        """The graph after the runtime's own passes, as an ONNX file."""
        options = _session_options(variant, threads)
        path = folder / "executed.onnx"
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "executed.data")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1048576")
        try:
            _open(nvidia.without_recording(variant), options)
        except UsageError as error:
            return Missing(f"the runtime could not write its optimized graph: {error.message}")
        return path

    def placement(self, profile: Profile, variant: Variant) -> Placement:
        """How many executed nodes each provider had."""
        nodes: dict[str, int] = {}
        for operator in profile.operators:
            nodes[operator.kernel] = nodes.get(operator.kernel, 0) + 1
        return Placement(nodes=nodes, requested=provider_name(variant.options.get("provider", "cpu")))


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


def _session_options(variant: Variant, threads: int) -> ort.SessionOptions:
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


def _open(variant: Variant, options: ort.SessionOptions) -> ort.InferenceSession:
    import onnxruntime as ort  # noqa: PLC0415 - only a run that needs the runtime pays for its import

    provider = provider_name(variant.options.get("provider", "cpu"))
    providers = qualcomm.attached(options, nvidia.providers_of(variant.options, provider))
    disabled = variant.options["disable"].split("+") if variant.options.get("disable") else None
    nvidia.load_libraries(provider)
    try:  # without the fallback, which would run on the CPU what was asked for elsewhere
        session = ort.InferenceSession(
            variant.path, options, providers=providers, disabled_optimizers=disabled, enable_fallback=0
        )
    except Exception as error:  # the runtime's exceptions share no base class
        raise UsageError(f"onnxruntime can't open {variant.path}: {_first_line(error)}") from error
    nvidia.check_running(provider, session.get_providers())
    return session


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _tensor_info(argument: ort.NodeArg) -> TensorInfo:
    match = _SIGNATURE_TYPE.match(argument.type)
    dtype = match[1] if match else argument.type
    shape: tuple[Dimension, ...] = tuple(argument.shape)
    return TensorInfo(name=argument.name, dtype=_TYPES.get(dtype, dtype), shape=shape)


def _normal_form(events: list[dict[str, Any]], runs: int) -> Profile:
    """Mean times of the last ``runs`` runs without the slowest quarter; the first one is warm-up.

    One interruption must not make an operator the dearest of all.
    """
    totals = [event for event in events if event.get("name") == "model_run"][-runs:]
    starts = [event["ts"] for event in totals]
    usual = np.argsort([event["dur"] for event in totals])[: runs - runs // 4]
    nodes = (event for event in events if event.get("cat") == "Node" and event["ts"] >= starts[0])
    kernels = [event for event in nodes if str(event.get("name", "")).endswith("_kernel_time")]
    times_us: dict[str, list[float]] = {}
    first: dict[str, dict[str, Any]] = {}
    for event, own_us in zip(kernels, _own_times_us(kernels), strict=True):
        key = f"{event['args'].get('node_index', '')}:{event['name']}"
        first.setdefault(key, event)
        times_us.setdefault(key, [0.0] * runs)[bisect_right(starts, event["ts"]) - 1] += own_us
    means_us = {key: float(np.array(times)[usual].mean()) for key, times in times_us.items()}
    operators = tuple(_operator(event, means_us[key] / 1e3) for key, event in first.items())
    run_ms = float(np.mean([totals[run]["dur"] for run in usual])) / 1e3
    return Profile(operators=operators, run_ms=run_ms, runs=runs)


def _own_times_us(kernels: Sequence[dict[str, Any]]) -> list[float]:
    """Time of each event without that of events inside it: a branch or loop is recorded with all that its body does.

    A body runs on the thread of the node that holds it, so what lies within an event of its thread is part of it.
    """
    own = [float(event["dur"]) for event in kernels]
    spans = [(event.get("tid", 0), event["ts"], event["ts"] + event["dur"]) for event in kernels]
    around: list[int] = []
    # of events that begin together the longest, and of equals the one that is recorded last, holds the others
    for index in sorted(range(len(kernels)), key=lambda i: (*spans[i][:2], -spans[i][2], -i)):
        thread, begin, _ = spans[index]
        while around and not (spans[around[-1]][0] == thread and begin < spans[around[-1]][2]):
            around.pop()
        if around:
            own[around[-1]] -= kernels[index]["dur"]
        around.append(index)
    return [max(0.0, time_us) for time_us in own]


def _operator(event: dict[str, Any], time_ms: float) -> Operator:
    arguments = event["args"]
    op_type = arguments.get("op_name", "")
    inputs, outputs = arguments.get("input_type_shape", []), arguments.get("output_type_shape", [])
    return Operator(
        name=str(event["name"]).removesuffix("_kernel_time"),
        op_type=op_type,
        kind=_KINDS.get(op_type, "other"),
        precision=_precision(op_type, inputs, outputs),
        time_ms=time_ms,
        kernel=arguments.get("provider", "unknown"),
        input_shapes=_shapes(inputs),
        output_shapes=_shapes(outputs),
        moved_bytes=_moved_bytes(op_type, inputs, outputs),
    )


def _precision(op_type: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> str:
    if op_type in _INTEGER_OPERATORS:
        return "int8"
    types = [name for entry in (*outputs, *inputs) for name in entry]
    floats = [name for name in types if "float" in name or name == "double"]
    name = (floats or types or ["unknown"])[0]
    return _TYPES.get(name, name)


def _moved_bytes(op_type: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> int:
    """Bytes of inputs and outputs; of a table that is looked up, only the rows that are taken."""
    touched = outputs if op_type.startswith("Gather") else inputs
    return sum(
        math.prod(shape) * _ITEM_BYTES.get(name, 4) for entry in (*touched, *outputs) for name, shape in entry.items()
    )


def _shapes(entries: list[dict[str, Any]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for entry in entries for shape in entry.values())


RUNTIME = OnnxRuntime()
