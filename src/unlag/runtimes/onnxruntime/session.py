"""ONNX Runtime: sessions with every option in the spec, profiles in the normal form, the graph that really runs."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unlag.errors import Missing, UsageError
from unlag.model.variant import Variant
from unlag.model.workload import Array, Dimension, Feed, Signature, TensorInfo
from unlag.runtimes.contract import Exposed, Inspection, Placement, Profile, Recipe, Session
from unlag.runtimes.onnxruntime import nvidia, qualcomm
from unlag.runtimes.onnxruntime.options import OPTIONS, check_options, provider_name, session_options
from unlag.runtimes.onnxruntime.profile import TYPES, normal_form

if TYPE_CHECKING:
    import onnxruntime as ort

    from unlag.model.draft import Draft, Observed
    from unlag.model.facts import GraphFacts

_NO_ARRAYS = re.compile(r"bfloat16|float8.*|float4.*|u?int[24]|float.*e.*m.*")
"""Element types that the runtime's Python interface takes no arrays of."""

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
        check_options(variant)

    def takes(self, path: Path) -> bool:
        """ONNX files."""
        return path.suffix == ".onnx"

    def recipes(self) -> Mapping[str, Recipe]:
        """None: unlag quantizes ONNX files by itself, layer by layer."""
        return {}

    def settings(self, threads: int) -> Mapping[str, Mapping[str, str]]:
        """None: which ones matter here depends on the model's graph, and on passes that acted on it."""
        del threads
        return {}

    def files(self, variant: Variant) -> tuple[Path, ...]:
        """The ONNX file and its external data."""
        from unlag.runtimes.onnxruntime import file  # noqa: PLC0415 - as in inspect

        return file.files(Path(variant.path))

    def inspect(self, variant: Variant) -> Inspection:
        """Signature, table sizes and bytes on disk, from the ONNX file.

        Raises:
            UsageError: the file is missing, truncated, not ONNX, or names external data outside its folder.
        """
        from unlag.runtimes.onnxruntime import file  # noqa: PLC0415 - workers need no graph library

        return file.inspect(Path(variant.path))

    def open(self, variant: Variant, threads: int) -> Session:
        """Open a session.

        Raises:
            UsageError: an option is wrong, or the runtime refuses the model.
        """
        opened = _open(variant, session_options(variant, threads))
        session = OnnxRuntimeSession(opened)
        for info in session.signature.inputs:
            if _NO_ARRAYS.fullmatch(info.dtype):
                what = f"{variant.path} takes {info.dtype} at {info.name!r}"
                raise UsageError(f"{what}, which onnxruntime's Python can't give", hint="cast it inside of the model")
        return nvidia.bound(opened, session.signature, variant.options) or session

    def profile(self, variant: Variant, threads: int, feed: Feed, runs: int) -> Profile:
        """Times of each operator over ``runs`` runs, from the runtime's own profiler."""
        options = session_options(variant, threads)
        with tempfile.TemporaryDirectory() as folder:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = _open(nvidia.without_recording(variant), options)
            for _ in range(runs + 1):
                session.run(None, dict(feed))
            events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
        return normal_form(events, runs)

    def executed_graph(self, variant: Variant, threads: int, folder: Path) -> Path | Missing:
        """The graph after the runtime's own passes, as an ONNX file."""
        options = session_options(variant, threads)
        path = folder / "executed.onnx"
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "executed.data")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1048576")
        try:
            _open(nvidia.without_recording(variant), options)
        except UsageError as error:
            return Missing(f"the runtime could not write its optimized graph: {error.message}")
        return path

    def read_executed(self, path: Path) -> GraphFacts | Missing:
        """Facts of the graph that the runtime has written."""
        from unlag.runtimes.onnxruntime import file  # noqa: PLC0415 - as in inspect

        return file.read_graph(path)

    def read_graph(self, variant: Variant) -> GraphFacts | Missing:
        """Facts of the graph in the file."""
        return self.read_executed(Path(variant.path))

    def expose(self, variant: Variant, folder: Path) -> Exposed:
        """The model with every tensor an output, run without passes. Raises UsageError as ``inspect`` does."""
        from unlag.runtimes.onnxruntime import file  # noqa: PLC0415 - as in inspect

        path = folder / "exposed.onnx"
        names = file.write_exposed(Path(variant.path), path)
        return Exposed(variant.at(path).with_options(optimization="off"), names)

    def open_draft(self, variant: Variant, standard: Variant, observed: Observed | None = None) -> Draft:
        """Both graphs in memory. Raises UsageError as ``inspect`` does."""
        from unlag.model.draft import open_draft  # noqa: PLC0415 - as in inspect

        return open_draft(variant, standard, observed)

    def placement(self, profile: Profile, variant: Variant) -> Placement:
        """How many executed nodes each provider had."""
        nodes: dict[str, int] = {}
        for operator in profile.operators:
            nodes[operator.kernel] = nodes.get(operator.kernel, 0) + 1
        return Placement(nodes=nodes, requested=provider_name(variant.options.get("provider", "cpu")))


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
    return TensorInfo(name=argument.name, dtype=TYPES.get(dtype, dtype), shape=shape)


RUNTIME = OnnxRuntime()
