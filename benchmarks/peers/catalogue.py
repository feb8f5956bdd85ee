"""The peers, in the order in which their models are made. Each line names the function in ``tools`` that does it."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.contract import Kind, Peer

STANDARD = "onnxruntime"
"""The peer that every ratio is to: ONNX Runtime on the standard as it is."""

_ORT = ("onnxruntime", "onnx")
_OPENVINO = ("openvino",)
_NNCF = ("openvino", "nncf")
_OLIVE = ("olive-ai", "onnxruntime")
_TORCH = ("torch", "transformers")
_TORCHAO = ("torch", "torchao", "transformers")

_FUSIONS: Mapping[Kind, str] = {"cnn": "its fusions are for transformers"}
_LINEAR: Mapping[Kind, str] = {"cnn": "it quantizes linear layers, and this model is made of convolutions"}

PEERS = (
    Peer(name=STANDARD, title="ONNX Runtime, float32", tool="ort_quantizer:as_is", packages=_ORT, expected_s=3),
    Peer(
        name="unlag",
        title="unlag fix, from the standard alone",
        tool="unlag_fix:from_standard",
        packages=("unlag", "onnxruntime"),
        ours=True,
        per_shape=True,
        expected_s=420,
    ),
    Peer(
        name="unlag-from-flash",
        title="unlag fix, from the article's Flash",
        tool="unlag_fix:from_variant",
        packages=("unlag", "onnxruntime"),
        ours=True,
        per_shape=True,
        start="flash",
        expected_s=480,
    ),
    Peer(
        name="unlag-from-int8",
        title="unlag fix, from the published int8",
        tool="unlag_fix:from_variant",
        packages=("unlag", "onnxruntime"),
        ours=True,
        per_shape=True,
        start="int8",
        expected_s=480,
    ),
    Peer(name="ort-dynamic", title="ONNX Runtime quantize_dynamic", tool="ort_quantizer:dynamic", packages=_ORT),
    Peer(
        name="ort-dynamic-channel",
        title="ONNX Runtime quantize_dynamic, per channel, reduced range",
        tool="ort_quantizer:dynamic_channel",
        packages=_ORT,
    ),
    Peer(
        name="ort-static",
        title="ONNX Runtime quantize_static, QDQ, preprocessed",
        tool="ort_quantizer:static",
        packages=_ORT,
        expected_s=60,
    ),
    Peer(
        name="ort-static-channel",
        title="ONNX Runtime quantize_static, QDQ, preprocessed, per channel, U8S8",
        tool="ort_quantizer:static_channel",
        packages=_ORT,
        expected_s=60,
    ),
    Peer(
        name="ort-optimizer-dynamic",
        title="ONNX Runtime transformer optimizer, then quantize_dynamic, per channel, reduced range",
        tool="ort_optimizer:optimized_dynamic",
        packages=_ORT,
        kinds=_FUSIONS,
    ),
    Peer(
        name="openvino",
        title="OpenVINO, float32 model, its own choice of precision",
        tool="openvino_nncf:converted",
        packages=_OPENVINO,
    ),
    Peer(
        name="openvino-f32",
        title="OpenVINO, float32 model, held to float32",
        tool="openvino_nncf:converted_f32",
        packages=_OPENVINO,
    ),
    Peer(
        name="openvino-fixed",
        title="OpenVINO, float32 model, its own choice of precision, fixed shape",
        tool="openvino_nncf:converted_fixed",
        packages=_OPENVINO,
        per_shape=True,
    ),
    Peer(
        name="nncf-ptq",
        title="NNCF quantize, in OpenVINO",
        tool="openvino_nncf:quantized",
        packages=_NNCF,
        expected_s=90,
    ),
    Peer(
        name="nncf-ptq-fixed",
        title="NNCF quantize, in OpenVINO, fixed shape",
        tool="openvino_nncf:quantized_fixed",
        packages=_NNCF,
        per_shape=True,
        expected_s=90,
    ),
    Peer(
        name="nncf-accuracy-control",
        title="NNCF quantize_with_accuracy_control, in OpenVINO",
        tool="openvino_nncf:accuracy_controlled",
        packages=_NNCF,
        expected_s=300,
    ),
    Peer(name="olive-quantize", title="olive quantize", tool="olive_cli:quantize", packages=_OLIVE, expected_s=40),
    Peer(
        name="olive-optimize", title="olive optimize, int8", tool="olive_cli:optimize", packages=_OLIVE, expected_s=40
    ),
    Peer(
        name="olive-optimize-fp32",
        title="olive optimize, float32",
        tool="olive_cli:optimize_float32",
        packages=_OLIVE,
        expected_s=40,
    ),
    Peer(
        name="olive-auto-opt", title="olive auto-opt, int8", tool="olive_cli:auto_opt", packages=_OLIVE, expected_s=40
    ),
    Peer(name="torch-eager", title="PyTorch, float32", tool="pytorch_models:eager", packages=_TORCH),
    Peer(name="torch-compile", title="torch.compile, float32", tool="pytorch_models:compiled", packages=_TORCH),
    Peer(
        name="torch-compile-max",
        title="torch.compile, float32, max-autotune and frozen weights",
        tool="pytorch_models:compiled_max",
        packages=_TORCH,
    ),
    Peer(
        name="torchao-dynamic",
        title="torchao int8 dynamic",
        tool="pytorch_models:torchao_dynamic",
        packages=_TORCHAO,
        kinds=_LINEAR,
    ),
    Peer(
        name="torchao-dynamic-compile",
        title="torchao int8 dynamic, torch.compile, max-autotune and frozen weights",
        tool="pytorch_models:torchao_dynamic_compiled",
        packages=_TORCHAO,
        kinds=_LINEAR,
    ),
)

BY_NAME = {peer.name: peer for peer in PEERS}
