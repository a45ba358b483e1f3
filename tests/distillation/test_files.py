"""Files that exist whole or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

from deployments.distillation.errors import NoSpace
from deployments.distillation.files import no_space_named, remove_partial, require_space, write_atomically

_KILLED_IN_THE_MIDDLE = """
import os, signal, sys
from pathlib import Path
from deployments.distillation.files import write_atomically

def half(file):
    file.write(b"new" * 100_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), half)
"""


def test_a_file_is_replaced_in_one_step_and_can_be_read_by_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old"))
    write_atomically(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.process
def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", _KILLED_IN_THE_MIDDLE, str(path)], timeout=100, check=False)
    assert done.returncode == -9
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_found_behind_other_errors(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="No space left"), no_space_named(tmp_path):
        raise SafetensorError('Error while serializing: I/O error: "No space left on device (os error 28)"')
    with pytest.raises(NoSpace, match="Disk quota exceeded"), no_space_named(tmp_path):
        _as_torch_does(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
    with pytest.raises(RuntimeError, match="other"), no_space_named(tmp_path):
        raise RuntimeError("other")
    with pytest.raises(PermissionError), no_space_named(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def _as_torch_does(error: OSError) -> None:
    try:
        raise error
    except OSError:
        raise RuntimeError("writer: unexpected pos 64 vs 0")  # noqa: B904 (the cause is not named)


def test_too_small_a_disk_is_told_before_the_work(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "there", 1, "texts")
    with pytest.raises(NoSpace, match=r"not/there: texts need about 1048576\.0 GiB and .* are free"):
        require_space(tmp_path / "not" / "there", 1 << 50, "texts")
