"""The two ceilings of this machine's roofline, measured once for each machine and kept.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009. Both are measured through ONNX Runtime, under the
bench's own conditions, so that they are what a perfect operator could reach there, not what a data sheet promises.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from unlag.assets.cache import cache_folder
from unlag.errors import Missing, UnlagError
from unlag.measure.bench import Bench, quick
from unlag.measure.contest import Contest
from unlag.model.variant import DEFAULT_RUNTIME, Variant
from unlag.runtimes.onnxruntime.nvidia import runtime_version

SIDE = 1024
"""Of the square matrices: their product takes milliseconds and keeps every core busy."""
STREAMED_ELEMENTS = 1 << 24
"""64 MiB in and 64 MiB out, beyond the caches of small machines. Larger caches make the ceiling look higher."""
ROUNDS = 3


class Ceilings(msgspec.Struct, frozen=True, tag=True):
    """What the machine can do at best, with the threads of the bench."""

    flop_per_s: float
    """Of a large float32 matrix product."""
    bytes_per_s: float
    """Read and written by an elementwise operator on tensors beyond the caches."""

    def __post_init__(self) -> None:
        """Refuse what no machine has: it would be divided by.

        Raises:
            ValueError: a ceiling is not above zero.
        """
        if not (self.flop_per_s > 0 and self.bytes_per_s > 0):
            raise ValueError("ceilings are above zero")


def ceilings_of(bench: Bench) -> Ceilings | Missing:
    """The ceilings for the bench's cores and threads, from the cache of this user where they were measured before."""
    kept = cache_folder() / f"ceilings-{_key(bench)}.json"
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(kept.read_bytes(), type=Ceilings)
    try:
        ceilings, quiet = _measure(bench)
    except UnlagError as error:
        return Missing(f"the machine's ceilings could not be measured: {error.message}")
    if quiet:  # what other processes pressed down is no ceiling to keep
        with contextlib.suppress(OSError):  # a cache that can't be written costs five seconds next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(msgspec.json.encode(ceilings))
    return ceilings


def _key(bench: Bench) -> str:
    facts = (str(bench.host.cpu.model), str(bench.host.cpu.isa), bench.cores, bench.threads, runtime_version())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _measure(bench: Bench) -> tuple[Ceilings, bool]:
    """The ceilings, and whether nothing disturbed the rounds."""
    rng = np.random.default_rng(0)
    feed = {
        "matrix": rng.standard_normal((SIDE, SIDE)).astype(np.float32),
        "stream": np.ones(STREAMED_ELEMENTS, np.float32),
    }
    with tempfile.TemporaryDirectory(prefix="unlag-") as folder:
        contenders = {
            "product": _write(Path(folder) / "product.onnx", "matrix", "MatMul", feed["matrix"]),
            "stream": _write(Path(folder) / "stream.onnx", "stream", "Mul", np.float32(1.5)),
        }
        bench.progress("measuring the machine's ceilings, once")
        protocol = quick(bench.protocol, ROUNDS)
        with Contest(contenders, feed, cores=bench.cores, threads=bench.threads, protocol=protocol) as contest:
            result = contest.measure()
    product_s, stream_s = (result.latency_ms(name).estimate / 1e3 for name in contenders)
    ceilings = Ceilings(flop_per_s=2 * SIDE**3 / product_s, bytes_per_s=2 * 4 * STREAMED_ELEMENTS / stream_s)
    return ceilings, result.quiet


def _write(path: Path, source: str, op_type: str, other: np.ndarray | np.float32) -> Variant:
    """A model of one operator on the input and a constant."""
    import onnx  # noqa: PLC0415 - only the first run on a machine builds models here
    from onnx import helper, numpy_helper  # noqa: PLC0415 - the same

    shape = [SIDE, SIDE] if op_type == "MatMul" else [STREAMED_ELEMENTS]
    graph = helper.make_graph(
        [helper.make_node(op_type, [source, "constant"], ["result"])],
        op_type,
        [helper.make_tensor_value_info(source, onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(other), "constant")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return Variant(DEFAULT_RUNTIME, str(path))
