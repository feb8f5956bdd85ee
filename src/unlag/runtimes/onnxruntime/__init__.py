"""ONNX Runtime: sessions with every option in the spec, profiles in the normal form, the graph that really runs."""

from unlag.runtimes.onnxruntime.session import RUNTIME

__all__ = ["RUNTIME"]
