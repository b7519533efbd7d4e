"""Files are written whole or not at all, to the place that their name leads to, and nothing is left behind."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lowchurn import _files
from lowchurn._files import (
    check_outputs,
    clear_stale,
    drafted,
    goes_to_stdout,
    is_stream,
    make_scratch,
    real_place,
    scratch_folder,
    write_file,
    write_files,
)


def names(folder):
    return sorted(os.listdir(folder))


@pytest.fixture
def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def draft_of(folder, pid, name="a.json", host=None, content="half"):
    place = folder / f".{name}.{host or _files._HOST}-{pid}-0123abcd.lowchurn"
    place.write_text(content)
    return place


def no_space(*arguments):
    raise OSError(28, "No space left on device")


# Writing


def test_text_and_bytes_are_written_and_replaced(tmp_path):
    write_files({tmp_path / "a": "ä\ud800", str(tmp_path / "b"): b"\x00"})
    assert (tmp_path / "a").read_bytes() == "ä".encode() + rb"\ud800"
    write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a", "b"]


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "a.json"
    target.write_text("old")
    link, second = tmp_path / "link", tmp_path / "second"
    link.symlink_to(target)
    second.symlink_to(link)
    write_file(second, "new")
    assert target.read_text() == "new"
    assert link.is_symlink()
    assert second.is_symlink()
    assert names(tmp_path / "real") == ["a.json"]


def test_a_link_to_nothing_makes_the_file_that_it_names(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real/new.json")
    check_outputs("audit", {"--json": link})
    write_file(link, "new")
    assert (tmp_path / "real" / "new.json").read_text() == "new"
    assert link.is_symlink()
    assert real_place(link) == (tmp_path / "real" / "new.json").resolve()


def test_a_link_to_a_folder_that_is_not_there_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "a.json")
    with pytest.raises(ValueError, match="there is no folder '.*nowhere'"):
        check_outputs("audit", {"--json": tmp_path / "link"})
    with pytest.raises(ValueError, match="cannot write .*No such file or directory"):
        write_file(tmp_path / "link", "x")


def test_links_that_lead_back_to_themselves_are_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match="leads back to itself"):
        check_outputs("audit", {"--json": tmp_path / "a"})


def test_another_name_of_the_old_file_keeps_the_old_content_whole(tmp_path):
    (tmp_path / "a").write_text("old")
    os.link(tmp_path / "a", tmp_path / "hard")
    write_file(tmp_path / "a", "new")
    assert ((tmp_path / "a").read_text(), (tmp_path / "hard").read_text()) == ("new", "old")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_the_mode_of_an_existing_file_is_kept(tmp_path, mode):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(mode)
    write_file(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "a", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_long_and_odd_names_can_be_written(tmp_path):
    for name in ("é" * 127, "a" * 255, "with\nbreak", "%s {x}", "-rf", "\udcff"):
        write_file(tmp_path / name, "content")
        assert (tmp_path / name).read_text() == "content"
    assert len(names(tmp_path)) == 6


def test_a_full_disk_leaves_the_old_files_and_no_draft(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ValueError, match=r"write: cannot write '.*b': No space left on device\."):
        write_files({tmp_path / "b": "new", tmp_path / "a": "new"})
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_several_files_are_moved_only_when_all_are_complete(tmp_path, monkeypatch):
    """The second one cannot be written: the first one stays as it was."""
    (tmp_path / "a").write_text("old")
    with pytest.raises(ValueError, match="cannot write"):
        write_files({tmp_path / "a": "new", tmp_path / "nowhere" / "b": "new"})
    assert (tmp_path / "a").read_text() == "old"
    monkeypatch.setattr(_files, "_write_draft", interrupted_after(1))
    with pytest.raises(KeyboardInterrupt):
        write_files({tmp_path / "a": "new", tmp_path / "b": "new"})
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def interrupted_after(count):
    write, written = _files._write_draft, []

    def write_some(*arguments):
        if len(written) == count:
            raise KeyboardInterrupt
        written.append(write(*arguments))

    return write_some


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="Is a directory"):
        write_file(tmp_path, "x")
    assert names(tmp_path) == []


def test_a_file_that_is_written_step_by_step(tmp_path):
    """It has its place at the end only, the mode of the file before, and links are followed."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    with drafted(tmp_path / "link") as draft, draft.open("w") as file:
        file.write("new ")
        assert (tmp_path / "real").read_text() == "old"
        file.write("file")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new file"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640
    assert names(tmp_path) == ["link", "real"]


def test_an_error_or_a_full_disk_on_the_way_leaves_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def write(error):
        with drafted(tmp_path / "a") as draft:
            draft.write_text("half")
            raise error

    with pytest.raises(KeyboardInterrupt):
        write(KeyboardInterrupt)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ValueError, match="cannot write .*: No space left"), drafted(tmp_path / "a") as draft:
        draft.write_text("new")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_readers_never_see_a_half(tmp_path):
    path, seen = tmp_path / "a", set()
    path.write_bytes(b"0" * 200_000)
    done = threading.Event()

    def read():
        while not done.is_set():
            seen.add(bytes(set(content := path.read_bytes())) + b"%d" % len(content))

    reader = threading.Thread(target=read)
    reader.start()
    for k in range(60):
        write_file(path, b"%d" % (k % 10) * 200_000)
    done.set()
    reader.join()
    assert all(len(each) == 7 and each.endswith(b"200000") for each in seen)


# Devices and pipes


def test_dev_null_stays_a_device():
    write_files({"/dev/null": "x"})
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert is_stream("/dev/null")
    assert not goes_to_stdout("/dev/null")


def test_a_draft_is_copied_to_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with drafted(tmp_path / "pipe") as draft:
        draft.write_bytes(b"x" * 3_000_000)
    reader.join()
    assert read == [b"x" * 3_000_000]
    assert names(tmp_path) == ["pipe"]


def test_a_full_device_is_one_line():
    with pytest.raises(ValueError, match=r"write: cannot write '/dev/full': No space left on device\."):
        write_file("/dev/full", "x")


def test_a_fifo_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    check_outputs("audit", {"--json": tmp_path / "pipe"})
    write_file(tmp_path / "pipe", b"x" * 100_000)
    reader.join(10)
    assert got == [b"x" * 100_000]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert names(tmp_path) == ["pipe"]


def test_a_file_descriptor_of_the_shell_is_written_to():
    """``--json >(jq)`` hands /dev/fd/63."""
    read, write = os.pipe()
    write_file(f"/dev/fd/{write}", "x")
    os.close(write)
    with os.fdopen(read) as file:
        assert file.read() == "x"


def test_where_a_pipe_is_closed_no_file_is_replaced(tmp_path):
    (tmp_path / "a").write_text("old")
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError):
        write_files({tmp_path / "a": "new", f"/dev/fd/{write}": "x"})
    os.close(write)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


TO_STDOUT = """
import sys
from lowchurn._files import goes_to_stdout, write_file
print("before", goes_to_stdout("/dev/stdout"), flush=True)
write_file("/dev/stdout", "content\\n")
print("after", flush=True)
"""


def test_the_standard_output_keeps_what_is_printed_around_it(tmp_path):
    wanted = "before True\ncontent\nafter\n"
    piped = subprocess.run([sys.executable, "-c", TO_STDOUT], capture_output=True, text=True, check=True)
    assert piped.stdout == wanted
    with (tmp_path / "out.txt").open("w") as file:  # redirected to a file by the shell
        subprocess.run([sys.executable, "-c", TO_STDOUT], stdout=file, check=True)
    assert (tmp_path / "out.txt").read_text() == wanted
    with (tmp_path / "out.txt").open("a") as file:
        subprocess.run([sys.executable, "-c", TO_STDOUT], stdout=file, check=True)
    assert (tmp_path / "out.txt").read_text() == 2 * wanted
    assert names(tmp_path) == ["out.txt"]


# Checks before any work


def test_outputs_that_are_an_input_are_refused_through_every_kind_of_name(tmp_path, monkeypatch):
    rows = tmp_path / "rows.csv"
    rows.write_text("a\n1\n")
    (tmp_path / "link").symlink_to(rows)
    os.link(rows, tmp_path / "hard")
    (tmp_path / "folder").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("rows.csv", "./rows.csv", "link", "hard", "folder/rows.csv", "gone/../rows.csv", str(rows), rows):
        with pytest.raises(ValueError, match=r"retrain: --out must not overwrite --data, got "):
            check_outputs("retrain", {"--out": name}, {"--data": rows})
        with pytest.raises(ValueError, match="must not overwrite"):
            check_outputs("retrain", {"--out": rows}, {"--data": name})
    assert rows.read_text() == "a\n1\n"


def test_an_input_folder_contains_its_files(tmp_path):
    (tmp_path / "parts").mkdir()
    with pytest.raises(ValueError, match="--json must not overwrite OLD"):
        check_outputs("audit", {"--json": tmp_path / "parts" / "new.json"}, {"OLD": tmp_path / "parts"})
    check_outputs("audit", {"--json": tmp_path / "new.json"}, {"OLD": tmp_path / "parts"})


def test_outputs_that_are_each_other_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("not-yet")
    for one, two in (("a", "./a"), ("link", "not-yet"), ("/dev/stdout", "/dev/fd/1")):
        with pytest.raises(ValueError, match="--out and --report must be different files"):
            check_outputs("retrain", {"--out": one, "--report": two})
    check_outputs("retrain", {"--out": "/dev/null", "--report": "/dev/null", "--json": None})
    assert names(tmp_path) == ["link"]


@pytest.mark.parametrize(
    ("path", "words"),
    [("", "it is not a file name"), ("a\0b", "it is not a file name"), (".", "it is a folder"),
     ("new/", "it is a folder"), ("nowhere/a", "there is no folder 'nowhere'"), ("a" * 300, "too long")],
)  # fmt: skip
def test_outputs_that_cannot_be_written_are_refused(tmp_path, monkeypatch, path, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"(?i)retrain: --out cannot be written to .*{words}"):
        check_outputs("retrain", {"--out": path})
    assert names(tmp_path) == []


def test_a_folder_or_file_without_permission_is_refused(tmp_path, monkeypatch):
    def denied(*arguments):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a").write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", denied)  # root may write everywhere
        with pytest.raises(ValueError, match="Permission denied"):
            check_outputs("retrain", {"--out": tmp_path / "b"})
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="may not be changed"):
        check_outputs("retrain", {"--out": tmp_path / "a"})
    assert names(tmp_path) == ["a"]


# What killed runs leave


def test_drafts_of_processes_that_are_gone_are_cleared(tmp_path, dead_pid):
    stale = draft_of(tmp_path, dead_pid)
    folder = tmp_path / f".scratch.{_files._HOST}-{dead_pid}-0123abcd.lowchurn"
    (folder / "inside").mkdir(parents=True)
    live = draft_of(tmp_path, os.getppid(), "live.json")
    own = draft_of(tmp_path, os.getpid(), "own.json")
    others = [tmp_path / ".a.json.lowchurn", tmp_path / f"{dead_pid}.lowchurn", tmp_path / "a.lowchurn"]
    for path in others:
        path.write_text("the user's")
    assert set(clear_stale(tmp_path)) == {stale, folder}
    assert set(tmp_path.iterdir()) == {live, own, *others}


def test_writing_and_scratch_folders_clear_what_is_stale(tmp_path, dead_pid):
    draft_of(tmp_path, dead_pid)
    write_file(tmp_path / "a.json", "new")
    assert names(tmp_path) == ["a.json"]
    draft_of(tmp_path, dead_pid)
    with scratch_folder(tmp_path) as place:
        assert names(tmp_path) == sorted([place.name, "a.json"])
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert names(tmp_path) == ["a.json"]


def test_drafts_of_other_machines_are_kept_for_a_day(tmp_path, dead_pid):
    other = draft_of(tmp_path, dead_pid, host="00000000")
    assert clear_stale(tmp_path) == []
    old = time.time() - _files.STALE_SECONDS - 10
    os.utime(other, (old, old))
    assert clear_stale(tmp_path) == [other]


def test_a_link_in_place_of_a_draft_is_removed_and_what_it_names_is_not(tmp_path, dead_pid):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").write_text("x")
    (tmp_path / f".scratch.{_files._HOST}-{dead_pid}-0123abcd.lowchurn").symlink_to(tmp_path / "precious")
    clear_stale(tmp_path)
    assert names(tmp_path) == ["precious"]
    assert names(tmp_path / "precious") == ["a"]


def test_process_numbers_beyond_any_range_and_folders_that_are_not_there(tmp_path):
    draft_of(tmp_path, 10**30)
    assert clear_stale(tmp_path) == []
    assert clear_stale(tmp_path / "nowhere") == []


def test_a_scratch_folder_goes_away_on_every_way_out(tmp_path):
    def interrupted():
        with scratch_folder(tmp_path) as place:
            (place / "a").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []
    kept = make_scratch(tmp_path)
    assert kept.is_dir()


KILLED = """
import os, sys, signal
from lowchurn import _files
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
_files.write_file(sys.argv[1], b"x" * 1000)
"""


def test_kill_9_while_writing_leaves_the_old_file_and_the_next_run_clears_the_draft(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert len(names(tmp_path)) == 2
    write_file(Path(path), "new")
    assert names(tmp_path) == ["a"]
    assert path.read_text() == "new"
