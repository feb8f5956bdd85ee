"""Downloads against an index of our own on 127.0.0.1, whole, broken and lying."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fake_index import Index, serving, sha256, tar_gz, wheel
from unlag import assets
from unlag.assets import Archive, Asset, Member
from unlag.errors import UsageError

BIG = os.urandom(1_500_000)
SMALL = b"small"
NESTED = b"inside two archives"
FILENAME = "toy_model-1.0-py3-none-any.whl"


WHEEL = wheel(
    {
        "toy/big.bin": BIG,
        "toy/deep/small.txt": SMALL,
        "toy/inner.tar.gz": tar_gz({"folder/nested.txt": NESTED}),
        "../../evil.txt": b"evil",
    }
)
TOY = Asset(
    Archive("Toy_Model", "1.0", FILENAME, sha256(WHEEL), len(WHEEL)),
    (
        Member("toy/big.bin", sha256(BIG)),
        Member("toy/deep/small.txt", sha256(SMALL)),
        Member("toy/inner.tar.gz!/folder/nested.txt", sha256(NESTED)),
    ),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("UNLAG_CACHE", str(folder))
    return folder


@pytest.fixture
def index(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    assert not cache.exists()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    with serving(FILENAME, WHEEL) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


def check_whole(folder: Path) -> None:
    assert (folder / "big.bin").read_bytes() == BIG
    assert (folder / "small.txt").read_bytes() == SMALL
    assert (folder / "nested.txt").read_bytes() == NESTED


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_downloads_extracts_and_stays_offline_afterwards(index: Index, cache: Path, html: bool) -> None:  # noqa: FBT001
    index.html = html
    seen: list[tuple[str, int, int]] = []
    folder = assets.fetch(TOY, progress=lambda *step: seen.append(step))
    check_whole(folder)
    assert folder == cache / "Toy_Model-1.0"
    assert seen[-1] == (FILENAME, len(WHEEL), len(WHEEL))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert sorted(p.name for p in cache.rglob("*") if p.is_file()) == [
        "big.bin",
        "nested.txt",
        "small.txt",
        f"{FILENAME}.lock",
    ]
    asked = len(index.requests)
    assert assets.fetch(TOY) == folder
    assert len(index.requests) == asked


def test_nothing_outside_the_named_members_is_written(index: Index, tmp_path: Path) -> None:
    assets.fetch(TOY)
    assert index.requests
    assert not list(tmp_path.rglob("evil.txt"))
    assert not (tmp_path.parent / "evil.txt").exists()


def test_goes_on_where_a_transfer_broke_off(index: Index) -> None:
    index.cut_at = [400_000, 300_000]
    check_whole(assets.fetch(TOY))
    assert index.ranges() == ["", "bytes=400000-", "bytes=700000-"]


def test_goes_on_from_an_earlier_process(index: Index, cache: Path) -> None:
    cache.mkdir()
    (cache / f"{FILENAME}.part").write_bytes(WHEEL[:123_456])
    check_whole(assets.fetch(TOY))
    assert index.ranges() == ["bytes=123456-"]


def test_starts_over_when_the_server_can_not_resume(index: Index, cache: Path) -> None:
    index.honors_range = False
    cache.mkdir()
    (cache / f"{FILENAME}.part").write_bytes(WHEEL[:1000])
    check_whole(assets.fetch(TOY))


@pytest.mark.parametrize("size", [1000, len(WHEEL), len(WHEEL) + 5], ids=["shorter", "as long", "longer"])
def test_a_rotten_part_is_thrown_away(index: Index, cache: Path, size: int) -> None:
    cache.mkdir()
    (cache / f"{FILENAME}.part").write_bytes(b"x" * size)
    check_whole(assets.fetch(TOY))
    assert index.ranges()[-1] == ""


def test_a_transfer_that_always_breaks_off_is_an_error_and_keeps_its_part(index: Index, cache: Path) -> None:
    index.cut_at = [1000] * 50
    with pytest.raises(UsageError, match="can't download toy_model"):
        assets.fetch(TOY)
    assert (cache / f"{FILENAME}.part").stat().st_size == 5000
    index.cut_at = []
    check_whole(assets.fetch(TOY))


def test_other_bytes_of_the_same_size_are_refused(index: Index, cache: Path) -> None:
    index.data = bytes(len(WHEEL))
    with pytest.raises(UsageError, match="sha256 differs") as caught:
        assets.fetch(TOY)
    assert "\n" not in caught.value.message
    assert not (cache / "Toy_Model-1.0" / "big.bin").exists()
    index.data = WHEEL
    check_whole(assets.fetch(TOY))


def test_another_size_is_refused_before_it_is_transferred(index: Index) -> None:
    index.data = WHEEL + b"more"
    seen: list[int] = []
    with pytest.raises(UsageError, match="size differs"):
        assets.fetch(TOY, progress=lambda _what, done, _total: seen.append(done))
    assert seen == []


def test_a_member_that_is_not_the_pinned_one_gets_no_name(index: Index, cache: Path) -> None:
    wrong = msgspec.structs.replace(TOY, members=(Member("toy/big.bin", sha256(b"other")),))
    with pytest.raises(UsageError, match=r"big\.bin"):
        assets.fetch(wrong)
    assert index.requests
    assert not list((cache / "Toy_Model-1.0").iterdir())


@pytest.mark.parametrize("path", ["toy/absent", "toy/inner.tar.gz!/absent"])
def test_a_member_that_is_absent_is_named(index: Index, path: str) -> None:
    with pytest.raises(UsageError, match="absent"):
        assets.fetch(msgspec.structs.replace(TOY, members=(Member(path, sha256(b"")),)))
    assert index.requests


@pytest.mark.parametrize("damage", [b"", BIG[:-1], b"y" + BIG[1:]], ids=["emptied", "truncated", "one byte"])
def test_a_damaged_cache_is_noticed_and_mended(index: Index, damage: bytes) -> None:
    file = assets.fetch(TOY) / "big.bin"
    file.write_bytes(damage)
    os.utime(file, ns=(0, 0))  # a time that this process hasn't seen, as after a restart
    assets.fetch(TOY, "small.txt")
    assert len(index.ranges()) == 1
    check_whole(assets.fetch(TOY))
    assert len(index.ranges()) == 2


def test_a_file_put_into_the_cache_by_hand_needs_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    cache.mkdir()
    (cache / FILENAME).write_bytes(WHEEL)
    check_whole(assets.fetch(TOY))
    assert (cache / FILENAME).exists()


def test_an_index_out_of_reach_is_one_line_with_a_way_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")  # the discard port: nobody listens
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(UsageError) as caught:
        assets.fetch(TOY)
    assert FILENAME in caught.value.message
    assert "127.0.0.1:9" in caught.value.message
    assert "\n" not in caught.value.message
    assert "secret" not in caught.value.message + caught.value.hint
    assert "PIP_INDEX_URL" in caught.value.hint
    assert str(cache / FILENAME) in caught.value.hint


def test_an_index_without_the_file_says_so(index: Index) -> None:
    archive = msgspec.structs.replace(TOY.archive, filename="toy_model-2.0.tar.gz")
    with pytest.raises(UsageError, match=r"has no toy_model-2\.0"):
        assets.fetch(msgspec.structs.replace(TOY, archive=archive))
    unknown = msgspec.structs.replace(TOY.archive, package="unknown")
    with pytest.raises(UsageError, match="Not Found"):
        assets.fetch(msgspec.structs.replace(TOY, archive=unknown))
    assert index.ranges() == []


def test_the_second_index_is_asked_when_the_first_fails(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.url)
    check_whole(assets.fetch(TOY))


def test_the_index_is_read_from_pips_own_file(index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {index.url}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.delenv("PIP_INDEX_URL")
    check_whole(assets.fetch(TOY))
    assert index.requests[0][0] == "/simple/toy-model/"


def test_a_login_in_the_index_url_is_sent(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.login = "Basic dXNlcjpwQHNz"  # user:p@ss
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http://", "http://user:p%40ss@"))
    check_whole(assets.fetch(TOY))


def test_an_index_in_a_folder_works(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "simple" / "toy-model" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{FILENAME}">{FILENAME}</a>')
    (page.parent / FILENAME).write_bytes(WHEEL)
    monkeypatch.setenv("PIP_INDEX_URL", page.parent.parent.as_uri())
    check_whole(assets.fetch(TOY))
    assert cache.exists()


FETCH = """
import sys, msgspec
from unlag import assets
print(assets.fetch(msgspec.json.decode(sys.argv[1], type=assets.Asset)))
"""


def test_processes_that_start_together_download_once(index: Index, cache: Path) -> None:
    command = [sys.executable, "-c", FETCH, msgspec.json.encode(TOY).decode()]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert outputs == [str(cache / "Toy_Model-1.0")] * 3
    assert len(index.ranges()) == 1
    check_whole(cache / "Toy_Model-1.0")


def test_a_cache_that_can_not_be_made_is_one_line(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("UNLAG_CACHE", str(blocked / "cache"))
    with pytest.raises(UsageError, match="can't write") as caught:
        assets.fetch(TOY)
    assert "UNLAG_CACHE" in caught.value.hint
    assert index.requests == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full, a disk that is always full")
def test_a_full_disk_is_one_line(index: Index, cache: Path) -> None:
    cache.mkdir()
    (cache / f"{FILENAME}.part").symlink_to("/dev/full")
    with pytest.raises(UsageError, match="No space left"):
        assets.fetch(TOY)
    assert index.ranges() == [""]


def test_a_read_only_cache_that_is_whole_is_enough(index: Index, cache: Path) -> None:
    folder = assets.fetch(TOY)
    paths = [cache, folder, *folder.iterdir()]
    for path in paths:
        path.chmod(path.stat().st_mode & 0o555)
    try:
        asked = len(index.requests)
        check_whole(assets.fetch(TOY))
        assert len(index.requests) == asked
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | 0o700)
