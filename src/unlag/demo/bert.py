"""An ONNX graph from a BERT checkpoint (config.json + safetensors), without torch.

The graph is what a careful exporter would write: one packed Q/K/V projection per layer, scaled
dot-product attention, exact (erf) GELU, one LayerNormalization node each and dynamic batch and sequence.
Weights are stored once, transposed to the [in, out] order that MatMul reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  (lets safetensors hand out bfloat16 arrays)
import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir import tape
from safetensors.numpy import load_file

from unlag.errors import UsageError

OPSET = 21
"""The first opset whose DequantizeLinear is complete (float16 scales, blocks)."""

FloatArray = npt.NDArray[np.float32]


class BertConfig(msgspec.Struct, frozen=True):
    """The fields of a checkpoint's config.json that shape the graph."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


def build_bert(checkpoint: Path) -> onnx.ModelProto:
    """Build the ONNX model of the checkpoint folder (config.json, model.safetensors).

    Inputs ``input_ids``, ``attention_mask``, ``token_type_ids``: int64 [batch, sequence].
    Output ``last_hidden_state``: float32 [batch, sequence, hidden].

    Raises:
        UsageError: the folder holds no BERT checkpoint, or one with another activation.
    """
    config = read_config(checkpoint / "config.json")
    weights = _read_weights(checkpoint / "model.safetensors")
    return build_bert_from(config, weights)


def read_config(path: Path) -> BertConfig:
    """Read a checkpoint's config.json.

    Raises:
        UsageError: missing or unreadable file, or an activation other than exact GELU.
    """
    try:
        config = msgspec.convert(json.loads(path.read_text("utf-8")), BertConfig)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{path} is not the config of a BERT checkpoint: {error}") from error
    if config.hidden_act != "gelu":
        raise UsageError(f"{path}: activation {config.hidden_act!r} is not supported, only 'gelu'")
    return config


def random_weights(config: BertConfig, seed: int = 0) -> dict[str, FloatArray]:
    """Weights of the right names and shapes, N(0, 0.02²) as BERT initializes them."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> FloatArray:
        return rng.normal(0.0, 0.02, shape).astype(np.float32)

    hidden, inner = config.hidden_size, config.intermediate_size
    weights = {
        "embeddings.word_embeddings.weight": normal(config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": normal(config.max_position_embeddings, hidden),
        "embeddings.token_type_embeddings.weight": normal(config.type_vocab_size, hidden),
    }
    linear = {f"attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
    linear |= {
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (inner, hidden),
        "output.dense": (hidden, inner),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(config.num_hidden_layers):
        prefix = f"encoder.layer.{layer}."
        for name, shape in linear.items():
            weights[f"{prefix}{name}.weight"] = normal(*shape)
            weights[f"{prefix}{name}.bias"] = normal(shape[0])
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}output.LayerNorm"]
    for name in norms:
        weights[f"{name}.weight"] = 1.0 + normal(hidden)
        weights[f"{name}.bias"] = normal(hidden)
    return weights


def build_bert_from(config: BertConfig, weights: Mapping[str, FloatArray]) -> onnx.ModelProto:
    """Build the ONNX model from a config and its weights, named as Transformers names them."""
    try:
        graph = _BertGraph(config, weights).build()
    except KeyError as error:
        raise UsageError(f"the checkpoint has no weight named {error}; not a BERT?") from error
    return ir.to_proto(ir.Model(graph, ir_version=10, producer_name="unlag.demo.bert"))


def _read_weights(path: Path) -> dict[str, FloatArray]:
    """Load safetensors as float32, dropping a ``bert.`` prefix and the old gamma/beta names."""
    try:
        tensors = load_file(path)
    except Exception as error:  # safetensors raises its own, undocumented, subclass
        raise UsageError(f"{path} is not a safetensors file: {error}") from error
    renamed = {}
    for name, tensor in tensors.items():
        short = name.removeprefix("bert.")
        short = short.replace("LayerNorm.gamma", "LayerNorm.weight")
        short = short.replace("LayerNorm.beta", "LayerNorm.bias")
        renamed[short] = tensor.astype(np.float32)
    return renamed


class _BertGraph:
    """Writes the nodes of one BERT encoder onto a tape."""

    def __init__(self, config: BertConfig, weights: Mapping[str, FloatArray]) -> None:
        self.config = config
        self.weights = weights
        self.tape = tape.Tape()

    def build(self) -> ir.Graph:
        ids, mask, types = (
            ir.Value(
                name=name,
                type=ir.TensorType(ir.DataType.INT64),
                shape=ir.Shape(["batch", "sequence"]),
            )
            for name in ("input_ids", "attention_mask", "token_type_ids")
        )
        x = self.embed(ids, types)
        bias = self.mask_bias(mask)
        for layer in range(self.config.num_hidden_layers):
            x = self.encode(x, bias, f"encoder.layer.{layer}.")
        x.name = "last_hidden_state"
        x.type = ir.TensorType(ir.DataType.FLOAT)
        x.shape = ir.Shape(["batch", "sequence", self.config.hidden_size])
        return ir.Graph(
            inputs=[ids, mask, types],
            outputs=[x],
            nodes=self.tape.nodes,
            initializers=self.tape.initializers,
            opset_imports={"": OPSET},
            name="bert",
        )

    def op(self, kind: str, inputs: Sequence[ir.Value | None], name: str, **attributes: float | list[int]) -> ir.Value:
        return self.tape.op(kind, inputs, attributes, name=name)

    def constant(self, array: npt.NDArray[np.generic], name: str) -> ir.Value:
        return self.tape.initializer(ir.tensor(array, name=name), name=name)

    def ints(self, values: Sequence[int], name: str) -> ir.Value:
        return self.constant(np.array(values, np.int64), name)

    def embed(self, ids: ir.Value, types: ir.Value) -> ir.Value:
        prefix = "embeddings."
        table = {
            kind: self.constant(self.weights[f"{prefix}{kind}_embeddings.weight"], f"{prefix}{kind}_embeddings.weight")
            for kind in ("word", "token_type", "position")
        }
        words = self.op("Gather", [table["word"], ids], f"{prefix}word")
        segments = self.op("Gather", [table["token_type"], types], f"{prefix}token_type")
        length = self.op("Shape", [ids], f"{prefix}length", start=1, end=2)
        positions = self.op(
            "Slice",
            [table["position"], self.ints([0], f"{prefix}zero"), length, self.ints([0], f"{prefix}axis")],
            f"{prefix}position",
        )
        summed = self.op("Add", [words, segments], f"{prefix}add_token_type")
        summed = self.op("Add", [summed, positions], f"{prefix}add_position")
        return self.norm(summed, f"{prefix}LayerNorm")

    def mask_bias(self, mask: ir.Value) -> ir.Value:
        """0 where a token counts and the lowest float where it is padding, [batch, 1, 1, sequence]."""
        lowest = float(np.finfo(np.float32).min)
        wide = self.op("Unsqueeze", [mask, self.ints([1, 2], "mask.axes")], "mask.unsqueeze")
        floats = self.op("Cast", [wide], "mask.cast", to=int(ir.DataType.FLOAT))
        padding = self.op("Sub", [self.constant(np.array(1.0, np.float32), "mask.one"), floats], "mask.invert")
        return self.op("Mul", [padding, self.constant(np.array(lowest, np.float32), "mask.lowest")], "mask.bias")

    def encode(self, x: ir.Value, bias: ir.Value, prefix: str) -> ir.Value:
        attended = self.attend(x, bias, f"{prefix}attention.self.")
        projected = self.linear(attended, f"{prefix}attention.output.dense")
        x = self.add_norm(projected, x, f"{prefix}attention.output.")
        inner = self.gelu(self.linear(x, f"{prefix}intermediate.dense"), f"{prefix}intermediate.")
        return self.add_norm(self.linear(inner, f"{prefix}output.dense"), x, f"{prefix}output.")

    def add_norm(self, x: ir.Value, residual: ir.Value, prefix: str) -> ir.Value:
        return self.norm(self.op("Add", [x, residual], f"{prefix}residual"), f"{prefix}LayerNorm")

    def attend(self, x: ir.Value, bias: ir.Value, prefix: str) -> ir.Value:
        q, k, v = self.packed_projection(x, prefix)
        query = self.heads(q, [0, 2, 1, 3], f"{prefix}query.")
        key = self.heads(k, [0, 2, 3, 1], f"{prefix}key.")
        value = self.heads(v, [0, 2, 1, 3], f"{prefix}value.")
        scores = self.op("MatMul", [query, key], f"{prefix}scores")
        root = self.constant(np.array(math.sqrt(self.config.head_size), np.float32), f"{prefix}sqrt_head_size")
        scaled = self.op("Div", [scores, root], f"{prefix}scale")
        masked = self.op("Add", [scaled, bias], f"{prefix}mask")
        weights = self.op("Softmax", [masked], f"{prefix}softmax", axis=-1)
        context = self.op("MatMul", [weights, value], f"{prefix}context")
        context = self.op("Transpose", [context], f"{prefix}context.transpose", perm=[0, 2, 1, 3])
        joined = self.ints([0, 0, self.config.hidden_size], f"{prefix}context.shape")
        return self.op("Reshape", [context, joined], f"{prefix}context.reshape")

    def packed_projection(self, x: ir.Value, prefix: str) -> Sequence[ir.Value]:
        """Query, key and value, [batch, sequence, hidden] each, from one MatMul."""
        parts = [f"{prefix}{name}" for name in ("query", "key", "value")]
        weight = np.concatenate([self.weights[f"{part}.weight"].T for part in parts], axis=1)
        bias = np.concatenate([self.weights[f"{part}.bias"] for part in parts])
        packed = self.op("MatMul", [x, self.constant(weight, f"{prefix}qkv.weight")], f"{prefix}qkv.matmul")
        packed = self.op("Add", [packed, self.constant(bias, f"{prefix}qkv.bias")], f"{prefix}qkv.add")
        split = {"axis": -1, "num_outputs": 3}
        return self.tape.op_multi_out("Split", [packed], split, num_outputs=3, name=f"{prefix}qkv.split")

    def heads(self, x: ir.Value, perm: list[int], prefix: str) -> ir.Value:
        shape = self.ints([0, 0, self.config.num_attention_heads, self.config.head_size], f"{prefix}shape")
        split = self.op("Reshape", [x, shape], f"{prefix}reshape")
        return self.op("Transpose", [split], f"{prefix}transpose", perm=perm)

    def linear(self, x: ir.Value, name: str) -> ir.Value:
        weight = self.constant(np.ascontiguousarray(self.weights[f"{name}.weight"].T), f"{name}.weight")
        product = self.op("MatMul", [x, weight], f"{name}.matmul")
        return self.op("Add", [product, self.constant(self.weights[f"{name}.bias"], f"{name}.bias")], f"{name}.add")

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        scale = self.constant(self.weights[f"{name}.weight"], f"{name}.weight")
        shift = self.constant(self.weights[f"{name}.bias"], f"{name}.bias")
        return self.op("LayerNormalization", [x, scale, shift], name, axis=-1, epsilon=self.config.layer_norm_eps)

    def gelu(self, x: ir.Value, prefix: str) -> ir.Value:
        """0.5 · x · (1 + erf(x / √2)), in the spelling that runtimes know how to fuse."""
        root = self.constant(np.array(math.sqrt(2.0), np.float32), f"{prefix}sqrt_two")
        one = self.constant(np.array(1.0, np.float32), f"{prefix}one")
        half = self.constant(np.array(0.5, np.float32), f"{prefix}half")
        erf = self.op("Erf", [self.op("Div", [x, root], f"{prefix}gelu.div")], f"{prefix}gelu.erf")
        shifted = self.op("Add", [erf, one], f"{prefix}gelu.add")
        return self.op("Mul", [self.op("Mul", [x, shifted], f"{prefix}gelu.mul"), half], f"{prefix}gelu.half")
