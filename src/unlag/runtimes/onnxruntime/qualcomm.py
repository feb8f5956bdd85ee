"""Qualcomm's provider of ONNX Runtime (QNN): a plugin that compiles for the NPU, and its simulator where there is none.

On x86 the backend for the NPU (HTP) compiles as it does for the device and runs what it compiled in a simulator:
results can be judged there, times can't. Provider options, session entries and the trace's format:
github.com/onnxruntime/onnxruntime-qnn, docs/execution_providers/QNN-ExecutionProvider.md.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from unlag.errors import Missing, UsageError
from unlag.model.variant import Variant

if TYPE_CHECKING:
    import onnxruntime as ort

QNN = "QNNExecutionProvider"
PACKAGE, MODULE = "onnxruntime-qnn", "onnxruntime_qnn"
INSTALL = "pip install 'unlag[npu]'"

SOC = "provider.soc_model"
"""The option of a spec that names the chip, by Qualcomm's number; without it the oldest NPU is compiled for."""
WHOLE = {"provider.offload_graph_io_quantization": "0"}
"""By default quantizing inputs and dequantizing outputs stays on the CPU."""

CONTEXT, TRACE = "context.onnx", "qnn_op_trace.json"
"""The compiled model, which names the file with the context binary, and what the provider says about each node."""

_OPTION = "provider."
_NODE, _BINARY = "EPContext", "ep_cache_context"
_REFUSED = re.compile(r"failed for node `([^`]+)` of type `([^`]+)` with error code (\d+)")
_FAILED = re.compile(r"\[E:onnxruntime:[^\]]*\] (.+)")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_SENTENCES = re.compile(r"(?<=\.)\s*(?=[A-Z])")
"""They stand one behind the other without a space; the later ones name the single node."""
_VALIDATION = "3110"
"""QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE."""


class Refusal(msgspec.Struct, frozen=True):
    """Nodes of one kind that the NPU does not run, and why, in the provider's words."""

    operator: str
    reason: str
    nodes: int


class Compilation(msgspec.Struct, frozen=True):
    """What the compiler made of a model."""

    partitions: int
    """Pieces that it was cut into: between two of them the CPU computes, and data go back and forth."""
    npu_nodes: int
    """Nodes of the file that the NPU runs, quantizing ones included."""
    fallback_nodes: int
    fallback: tuple[Refusal, ...]
    operators: dict[str, int]
    """How many of each operator the compiled graph has, before the compiler's own optimization; by the NPU's names."""
    context_bytes: int
    context: str
    """Path of the compiled model; empty where nothing of it runs on the NPU."""


def missing() -> Missing | None:
    """Why there is no compiler for the NPU here, or nothing."""
    if importlib.util.find_spec(MODULE) is None:
        return Missing(f"the package {PACKAGE} is not installed")
    import onnxruntime_qnn  # noqa: PLC0415 - only what compiles for the NPU needs it

    for path in (onnxruntime_qnn.get_library_path(), onnxruntime_qnn.get_qnn_htp_path()):
        if not Path(path).is_file():
            return Missing(f"the package {PACKAGE} lacks {Path(path).name}, which compiles for the NPU")
    return None


def check_available(name: str) -> bool:
    """Whether it is this provider that is asked for.

    Raises:
        UsageError: it is, and its package isn't there.
    """
    if not is_asked(name):
        return False
    absent = missing()
    if absent is not None:
        raise UsageError(f"nothing can be compiled for the NPU here: {absent.reason}", hint=INSTALL)
    return True


def is_asked(name: str) -> bool:
    """Whether a provider's name, short or long, is this one's: the runtime itself knows it only once it is loaded."""
    return name.lower().removesuffix("executionprovider") == "qnn"


def is_simulated(options: Mapping[str, str]) -> bool:
    """Whether a spec asks for the NPU on a machine that can only simulate it."""
    return is_asked(options.get("provider", "cpu")) and platform.machine().lower() in {"x86_64", "amd64"}


def runtime_version() -> str:
    """The package's name and version; empty where it is not installed."""
    try:
        return f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


Providers = list[tuple[str, dict[str, str]]]


def attached(session: ort.SessionOptions, providers: Providers) -> Providers | None:
    """Load the plugin and hang it on the session's options, where it is asked for; then no provider is named to it.

    Raises:
        UsageError: the plugin is not installed, or can't be loaded.
    """
    name, options = providers[0]
    if not check_available(name):
        return providers
    import onnxruntime as ort  # noqa: PLC0415 - the same
    import onnxruntime_qnn  # noqa: PLC0415 - the same

    try:
        if not _devices():
            ort.register_execution_provider_library(QNN, onnxruntime_qnn.get_library_path())
        session.add_provider_for_devices(
            _devices()[:1], {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **options}
        )
    except Exception as error:  # the runtime's exceptions share no base class
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"the compiler for the NPU can't be loaded: {lines[0]}", hint=INSTALL) from error
    return None


def _devices() -> list[Any]:
    """What the plugin can use here, the NPU first; on a machine without one it offers the CPU, for its simulator."""
    import onnxruntime as ort  # noqa: PLC0415 - the same

    found = [device for device in ort.get_ep_devices() if device.ep_name == QNN]
    return sorted(found, key=lambda device: device.device.type != ort.OrtHardwareDeviceType.NPU)


def session_code(options: Mapping[str, str], compiled: str) -> list[str]:
    """Python that opens a compiled model in plain ONNX Runtime, with the provider's options of a spec."""
    asked = {k.removeprefix(_OPTION): v for k, v in options.items() if k.startswith(_OPTION) and k != SOC}
    given = ", ".join(
        ("'backend_path': onnxruntime_qnn.get_qnn_htp_path()", *(f"{k!r}: {v!r}" for k, v in asked.items()))
    )
    return [
        "import onnxruntime as ort, onnxruntime_qnn",
        f"ort.register_execution_provider_library({QNN!r}, onnxruntime_qnn.get_library_path())",
        f"devices = [device for device in ort.get_ep_devices() if device.ep_name == {QNN!r}]",
        "options = ort.SessionOptions()",
        f"options.add_provider_for_devices(devices[:1], {{{given}}})",
        f"session = ort.InferenceSession({compiled!r}, options)",
    ]


def compiling(variant: Variant, folder: Path) -> Variant:
    """The variant with options that leave the compiled model and the trace in the folder as soon as it is opened."""
    extra = {
        "provider": "qnn",
        "log": "warning",
        "config.ep.context_enable": "1",
        "config.ep.context_embed_mode": "0",
        "config.ep.context_file_path": str(folder / CONTEXT),
        "provider.enable_framework_op_trace": "1",
        "provider.framework_op_trace_dir": str(folder),
    }
    return variant.with_options(**extra)


class _Unsupported(msgspec.Struct, frozen=True):
    node_name: str
    op_type: str
    reason: str = ""


class _Mapping(msgspec.Struct, frozen=True):
    dst_qnn_op_type: str


class _Subgraph(msgspec.Struct, frozen=True):
    op_mappings: list[_Mapping] = []


class _Summary(msgspec.Struct, frozen=True):
    supported_nodes: int


class _Trace(msgspec.Struct, frozen=True):
    """Those parts of the provider's trace, schema 2, that are read here."""

    summary: _Summary
    subgraph_traces: list[_Subgraph] = []
    unsupported_nodes: list[_Unsupported] = []


def read_compilation(folder: Path, log: str) -> Compilation:
    """What the compiler left in the folder, and what it printed meanwhile.

    Raises:
        UsageError: it left nothing; with what it printed last.
    """
    path = folder / CONTEXT
    try:
        trace = msgspec.json.decode((folder / TRACE).read_bytes(), type=_Trace)
    except OSError as error:
        failed = _FAILED.findall(_COLORS.sub("", log))
        raise UsageError(f"the compiler for the NPU says: {failed[-1].strip() if failed else 'nothing'}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"this version of {PACKAGE} writes a trace that unlag can't read: {error}") from error
    operators = Counter(one.dst_qnn_op_type for part in trace.subgraph_traces for one in part.op_mappings)
    partitions, binaries = _read_context(path) if path.exists() else (0, set())
    return Compilation(
        partitions=partitions,
        npu_nodes=trace.summary.supported_nodes if partitions else 0,
        fallback_nodes=len(trace.unsupported_nodes),
        fallback=_refusals(trace.unsupported_nodes, log),
        operators=dict(operators.most_common()),
        context_bytes=sum((folder / name).stat().st_size for name in binaries),
        context=str(path) if partitions else "",
    )


def _read_context(path: Path) -> tuple[int, set[str]]:
    """How many compiled parts the model has, and the files that hold them."""
    import onnx  # noqa: PLC0415 - workers read this file too, and need no graph library

    parts = [node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == _NODE]
    named = {a.s.decode() for node in parts for a in node.attribute if a.name == _BINARY}
    return len(parts), {name for name in named if name and (path.parent / name).is_file()}


def _refusals(nodes: list[_Unsupported], log: str) -> tuple[Refusal, ...]:
    """Nodes that the CPU runs by operator and reason; what is quantized around another node has that node's reason."""
    codes = {name: (kind, code) for name, kind, code in _REFUSED.findall(log)}
    counted = Counter((node.op_type, _reason(node, codes)) for node in nodes)
    found = [Refusal(operator, reason, count) for (operator, reason), count in counted.items()]
    return tuple(sorted(found, key=lambda refusal: -refusal.nodes))


def _reason(node: _Unsupported, codes: Mapping[str, tuple[str, str]]) -> str:
    """The provider's reason in one sentence that does not name the single node, or the backend's where it has one."""
    if node.node_name in codes:
        kind, code = codes[node.node_name]
        what = "does not take these types, shapes or parameters" if code == _VALIDATION else "refuses it"
        return f"the NPU's {kind} {what} (error {code})"
    first = _SENTENCES.split(node.reason)[0].strip().rstrip(".")
    return first or "the provider gives no reason"
