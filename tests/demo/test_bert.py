"""The exported encoder against two others: plain numpy in float64, and PyTorch's own encoder layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import erf

from unlag import assets
from unlag.demo.bert import BertConfig, build_bert, build_bert_from, random_weights, read_config
from unlag.errors import UsageError

TINY = BertConfig(
    vocab_size=60,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=20,
)
Array = npt.NDArray[np.generic]


def feed_of(config: BertConfig, batch: int, sequence: int, *, padded: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(batch * 100 + sequence)
    mask = np.ones((batch, sequence), np.int64)
    if padded:
        mask[-1, sequence // 2 :] = 0
    return {
        "input_ids": rng.integers(0, config.vocab_size, (batch, sequence)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, config.type_vocab_size, (batch, sequence)),
    }


def run(model: onnx.ModelProto, feed: Mapping[str, Array]) -> npt.NDArray[np.float32]:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(feed))[0]


def embedded(weights: Mapping[str, Array], feed: Mapping[str, Array]) -> Array:
    sequence = feed["input_ids"].shape[1]
    return (
        weights["embeddings.word_embeddings.weight"][feed["input_ids"]]
        + weights["embeddings.token_type_embeddings.weight"][feed["token_type_ids"]]
        + weights["embeddings.position_embeddings.weight"][:sequence]
    )


def numpy_bert(config: BertConfig, weights: Mapping[str, Array], feed: Mapping[str, Array]) -> Array:
    """BERT as its paper has it, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}

    def linear(x: Array, name: str) -> Array:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Array, name: str) -> Array:
        centered = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centered**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return centered / spread * w[f"{name}.weight"] + w[f"{name}.bias"]

    def heads(x: Array) -> Array:
        return x.reshape(*x.shape[:2], config.num_attention_heads, -1).swapaxes(1, 2)

    x = norm(embedded(w, feed), "embeddings.LayerNorm")
    hidden = np.where(feed["attention_mask"][:, None, None, :] == 1, 0.0, -np.inf)
    for layer in range(config.num_hidden_layers):
        at = f"encoder.layer.{layer}."
        q, k, v = (heads(linear(x, f"{at}attention.self.{name}")) for name in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(config.head_size) + hidden
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        context = (weight / weight.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape)
        x = norm(x + linear(context, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
        inner = linear(x, f"{at}intermediate.dense")
        inner = 0.5 * inner * (1 + erf(inner / np.sqrt(2)))
        x = norm(x + linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")
    return x


def torch_bert(config: BertConfig, weights: Mapping[str, Array], feed: Mapping[str, Array]) -> Array:
    """PyTorch's encoder layers with the same weights."""
    torch = pytest.importorskip("torch", reason="the other reference, in numpy, is enough where torch is absent")
    w = {name: torch.tensor(np.asarray(array, np.float32)) for name, array in weights.items()}
    width = (config.hidden_size,)
    at = "embeddings.LayerNorm"
    x = torch.tensor(np.asarray(embedded(weights, feed), np.float32))
    x = torch.nn.functional.layer_norm(x, width, w[f"{at}.weight"], w[f"{at}.bias"], config.layer_norm_eps)
    padding = torch.tensor(feed["attention_mask"] == 0)
    for index in range(config.num_hidden_layers):
        layer = torch.nn.TransformerEncoderLayer(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=config.layer_norm_eps,
            batch_first=True,
        )
        at = f"encoder.layer.{index}."
        names = {
            "self_attn.out_proj": "attention.output.dense",
            "linear1": "intermediate.dense",
            "linear2": "output.dense",
            "norm1": "attention.output.LayerNorm",
            "norm2": "output.LayerNorm",
        }
        state = {f"{ours}.{k}": w[f"{at}{theirs}.{k}"] for ours, theirs in names.items() for k in ("weight", "bias")}
        for kind in ("weight", "bias"):
            parts = [w[f"{at}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            state[f"self_attn.in_proj_{kind}"] = torch.cat(parts)
        layer.load_state_dict(state)
        layer.train()  # the fast path of eval mode zeroes padded positions; without dropout both compute the same
        x = layer(x, src_key_padding_mask=padding)
    return x.detach().numpy()


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return assets.minilm_checkpoint()


@pytest.fixture(scope="module")
def minilm(checkpoint: Path) -> onnx.ModelProto:
    return build_bert(checkpoint)


@pytest.mark.parametrize("reference", [numpy_bert, torch_bert])
@pytest.mark.parametrize(("batch", "sequence"), [(1, 1), (1, 20), (3, 7)])
def test_a_tiny_model_computes_bert(reference, batch: int, sequence: int) -> None:
    weights = random_weights(TINY, seed=5)
    feed = feed_of(TINY, batch, sequence, padded=sequence > 1)
    expected = reference(TINY, weights, feed)
    found = run(build_bert_from(TINY, weights), feed)
    assert found.shape == (batch, sequence, TINY.hidden_size)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("reference", [numpy_bert, torch_bert])
def test_the_real_model_computes_bert(reference, checkpoint: Path, minilm: onnx.ModelProto) -> None:
    config = read_config(checkpoint / "config.json")
    feed = feed_of(config, 2, 24, padded=True)
    expected = reference(config, load_file(checkpoint / "model.safetensors"), feed)
    np.testing.assert_allclose(run(minilm, feed), expected, atol=1e-4)


def test_padding_changes_nothing_for_the_tokens_beside_it(minilm: onnx.ModelProto) -> None:
    config = TINY
    feed = feed_of(config, 1, 6)
    longer = {name: np.pad(array, ((0, 0), (0, 4))) for name, array in feed.items()}
    np.testing.assert_allclose(run(minilm, longer)[:, :6], run(minilm, feed), atol=1e-5)


def test_the_graph_is_what_a_careful_exporter_writes(minilm: onnx.ModelProto) -> None:
    onnx.checker.check_model(minilm, full_check=True)
    kinds = [node.op_type for node in minilm.graph.node]
    assert kinds.count("LayerNormalization") == 13
    assert kinds.count("Split") == kinds.count("Softmax") == kinds.count("Erf") == 6
    assert kinds.count("MatMul") == 6 * 6
    assert kinds.count("Cast") == 1
    names = [node.name for node in minilm.graph.node]
    assert len(set(names)) == len(names)
    dims = [d.dim_param or d.dim_value for d in minilm.graph.input[0].type.tensor_type.shape.dim]
    assert dims == ["batch", "sequence"]
    assert 90_000_000 < minilm.ByteSize() < 91_000_000


def test_old_and_prefixed_names_and_small_floats_are_read(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    config = {**{name: getattr(TINY, name) for name in TINY.__struct_fields__}, "model_type": "bert"}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    old = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): (
            array.astype(ml_dtypes.bfloat16)
        )
        for name, array in weights.items()
    }
    save_file(old, tmp_path / "model.safetensors")
    feed = feed_of(TINY, 1, 5)
    rounded = {name: array.astype(ml_dtypes.bfloat16).astype(np.float32) for name, array in weights.items()}
    np.testing.assert_array_equal(run(build_bert(tmp_path), feed), run(build_bert_from(TINY, rounded), feed))


def test_random_weights_are_the_seeds() -> None:
    first, again, other = (random_weights(TINY, seed) for seed in (1, 1, 2))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


def test_what_is_no_bert_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        build_bert(tmp_path)
    config = {name: getattr(TINY, name) for name in TINY.__struct_fields__}
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}), "utf-8")
    with pytest.raises(UsageError, match="relu"):
        build_bert(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    for content in (None, b"", b"not safetensors at all"):
        if content is not None:
            (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(UsageError, match="safetensors"):
            build_bert(tmp_path)
    save_file({"weight": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="no weight named"):
        build_bert(tmp_path)
