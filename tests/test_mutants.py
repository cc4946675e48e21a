"""`make mutants`: what it changes, which changes count as seen, and that nothing outlives or outlasts it."""

import ast
import sys
import time
from pathlib import Path

import pytest

from carpool.launcher import processes
from tests import mutants
from tests.kit.contained_run import TIMED_OUT
from tests.kit.mutations import mutations_of
from tests.mutants import MutantRun, run_tests
from tests.test_fast_selection import commit, git

MODULE = "def is_room(count: int, most: int) -> bool:\n    return count < most\n"
TEST = "from own import is_room\ndef test_it() -> None:\n    assert is_room(1, 9)\n{}"


def checkout(folder: Path, module: str, test: str) -> Path:
    """A small one: a module and its test."""
    (folder / "own.py").write_text(module)
    (folder / "test_own.py").write_text(test)
    (folder / "conftest.py").write_text("")
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def survivors(folder: Path, *, seconds: float = 300.0) -> list[str]:
    run = MutantRun(folder, seconds=seconds, seed=0, jobs=2)
    return sorted(
        each.mutation.new for each in run.verdicts({"own.py": ["test_own.py"]}) if not each.is_killed
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f(x)", "pass"),
        ("x.y = 1", "pass"),
        ("x += 1", "pass"),
        ("if a: b = c", "if (not (a)): b = c"),
        ("b = a < c", "b = (a <= c)"),
        ("b = a is None", "b = (a is not None)"),
        ("b = a and c", "b = ((a) or (c))"),
        ("b = not a", "b = (a)"),
        ("b = 7", "b = (8)"),
        ("b = True", "b = False"),
        ("b = a + c", "b = ((a) - (c))"),
        ("def f(): return 'ü', a", "def f(): return None"),
    ],
)
def test_a_line_is_changed_in_one_place(old: str, new: str) -> None:
    text = f"# ü\n{old}\n# end\n"
    found = [each.applied(text) for each in mutations_of(text)]
    assert f"# ü\n{new}\n# end\n" in found
    assert all(ast.parse(each) for each in found)


@pytest.mark.parametrize(
    "text",
    ['"""Words."""', "assert a == 1", "log.info('%d', 1)", "b: Literal[1]", "@f(1)\ndef g(): pass", "x = y"],
)
def test_what_is_no_behaviour_is_not_changed(text: str) -> None:
    assert mutations_of(text) == []


def test_a_change_that_no_test_sees_survives_and_one_that_a_test_sees_does_not(tmp_path: Path) -> None:
    assert survivors(checkout(tmp_path, MODULE, TEST.format(""))) == ["(count <= most)"]
    assert (tmp_path / "own.py").read_text() == MODULE


def test_a_stronger_test_leaves_no_survivor(tmp_path: Path) -> None:
    stronger = TEST.format("    assert not is_room(9, 9)\n")
    assert survivors(checkout(tmp_path, MODULE, stronger)) == []


def test_a_change_that_hangs_counts_as_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "HANGS_AFTER_S", 1.0)
    module = "def run() -> None:\n    while True:\n        break\n"
    checkout(tmp_path, module, "from own import run\ndef test_it() -> None:\n    run()\n")
    run = MutantRun(tmp_path, seconds=300, seed=0, jobs=1)
    [hung] = [each for each in run.verdicts({"own.py": ["test_own.py"]}) if each.mutation.old == "break"]
    assert (hung.is_killed, hung.is_hung) == (True, True)


def test_tests_that_are_red_without_a_change_judge_nothing(tmp_path: Path) -> None:
    checkout(tmp_path, MODULE, TEST.format("    assert False\n"))
    run = MutantRun(tmp_path, seconds=300, seed=0, jobs=1)
    assert list(run.verdicts({"own.py": ["test_own.py"]})) == []
    assert list(run.suites["own.py"].left_out) == ["test_own.py"]


def test_nothing_is_tried_when_the_time_is_over(tmp_path: Path) -> None:
    run = MutantRun(checkout(tmp_path, MODULE, TEST.format("")), seconds=0, seed=0, jobs=1)
    assert list(run.verdicts({"own.py": ["test_own.py"]})) == []


def test_the_modules_are_those_that_have_changed_since_main_was_pushed_or_since_a_revision(
    tmp_path: Path,
) -> None:
    pushed, here = tmp_path / "pushed", tmp_path / "here"
    first, second, gone = (f"client/carpool/{name}.py" for name in ("first", "second", "gone"))
    (pushed / "client/carpool").mkdir(parents=True)
    git(pushed, "init")
    commit(pushed, first)
    commit(pushed, gone)
    git(tmp_path, "clone", str(pushed), str(here))
    commit(here, second)
    commit(here, "client/carpool/page.html")
    commit(here, "test_second.py")
    (here / gone).unlink()
    assert mutants.changed_modules(root=here) == [second]
    (here / first).write_text("another text")
    assert mutants.changed_modules("HEAD", here) == [first]
    with pytest.raises(SystemExit, match=r"no-such.*: name one with BASE=, or files with FILES="):
        mutants.changed_modules("no-such", here)


@pytest.mark.skipif(sys.platform != "linux", reason="leftovers are adopted on Linux only")
def test_a_run_that_hangs_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    mark = f"CARPOOL_TEST_OF={tmp_path}"
    code = f"env -i {mark} setsid sh -c 'setsid sleep 1000 & sleep 1000' & sleep 1000"
    hangs = f"import subprocess\ndef test_it():\n    subprocess.run(['sh', '-c', {code!r}])\n"
    began = time.monotonic()
    run = run_tests(checkout(tmp_path, MODULE, hangs), ["test_own.py"], 5.0)
    assert run.code == TIMED_OUT
    assert run.took_s <= time.monotonic() - began
    assert processes.with_environment(lambda environ: mark in environ) == []
