"""`python -m bench.structure_report REVISION`: the structure of this tree's HEAD next to that of a revision.

Unpacks both revisions into a temporary directory and prints a Markdown table: modules, code lines (without
blanks, comments and docstrings), file sizes, long functions and composition roots, read from the sources; and
the functions that one `tools/call` passes in shim, broker and supervisor. For those a private carpool of each
tree runs under cProfile with an echo server, once with few and once with more calls: a function is on the way
of a call when it ran about once more per additional call, or oftener. Bounded; ends what it started.

Knows nothing of: which figure is good.
"""

import argparse
import ast
import io
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

HERE: Final = Path(__file__).parents[1]
PACKAGES: Final = {
    "broker": "broker/carpool_broker",
    "supervisor": "supervisor/carpool_supervisor",
    "protocol": "protocol/carpool_protocol",
    "client": "client/carpool",
}
ROOT_CLASSES: Final = ("BrokerCore", "BrokerShell", "SupervisorCore", "SupervisorShell")
ROLES: Final = ("shim", "broker", "supervisor")
LONG_LINES: Final = 40
HOPS: Final = 10
FEW, MORE = 100, 300
NEARLY: Final = 0.9
"""A start and an end differ by some calls between two runs."""
LIMIT_S: Final = 60
_LAYOUT: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_SHIM: Final = """
import cProfile, sys, time
from carpool.entry import main
sys.argv = ["carpool", "connect"]
profile = cProfile.Profile(time.thread_time)
try:
    profile.runcall(main)
finally:
    profile.dump_stats(sys.orig_argv[-1])
"""


@dataclass
class FileFacts:
    """What one source file holds.

    `statements` does not depend on how lines are wrapped. `roots`: lines of the constructors of composition
    roots, by class.
    """

    code_lines: int
    statements: int
    long_functions: int
    roots: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Hop:
    """A function that each call passes: how often, and its own CPU time per call under the profiler."""

    name: str
    calls: float
    own_us: float

    @property
    def file(self) -> str:
        return self.name.partition(":")[0]


Profile = Mapping[str, tuple[int, float]]
"""How often each function of ours has run, and its own seconds."""


def read_facts(source: str) -> FileFacts:
    """Count one file."""
    tree = ast.parse(source)
    docs: set[int] = set()
    for node in ast.walk(tree):
        if _is_docstring(node):
            docs.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    roots = {
        node.name: _lines(each)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in ROOT_CLASSES
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    }
    statements = sum(isinstance(each, ast.stmt) and not _is_docstring(each) for each in ast.walk(tree))
    long = sum(_lines(each) > LONG_LINES for each in functions)
    return FileFacts(len(code - docs), statements, long, roots)


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    """A text that is a statement: also those below fields."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def per_call(few: Profile, more: Profile, calls: int) -> list[Hop]:
    """Functions on the way of a call, the costliest first. `more` had `calls` more calls than `few`."""
    hops = []
    for name, (count, own_s) in more.items():
        before, before_s = few.get(name, (0, 0.0))
        if count - before >= calls * NEARLY:
            hops.append(Hop(name, (count - before) / calls, max(own_s - before_s, 0.0) / calls * 1e6))
    return sorted(hops, key=lambda hop: -hop.own_us)


class ProfiledTree:
    """A private carpool of one source tree, all of its processes under a profiler."""

    def __init__(self, tree: Path, place: Path) -> None:
        self._tree = tree
        self._place = place
        place.mkdir(mode=0o700)
        self._env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(tree / Path(each).parent) for each in PACKAGES.values()),
            "CARPOOL_RUNTIME_DIR": str(place),
            "CARPOOL_STATE_DIR": str(place / "state"),
            "CARPOOL_PROFILE": str(place),
        }
        self._env.pop("CARPOOL_CHECK", None)

    def profile(self, calls: int) -> dict[str, Profile]:
        """The profiles of a run with so many calls, by role."""
        config = self._place / "carpool.json"
        echo = [sys.executable, "-S", "-E", str(HERE / PACKAGES["client"] / "demo" / "echo_server.py")]
        server = {"command": echo[0], "args": echo[1:], "sharing": "concurrent"}
        config.write_text(json.dumps({"mcpServers": {"echo": server}}))
        self._carpool("up", "--detach", "--config", str(config))
        try:
            self._call(calls)
        finally:
            self._carpool("down")
        found = {"shim": "shim.prof", "broker": "broker-*.prof", "supervisor": "supervisor*-*.prof"}
        return {role: self._read(next(self._place.glob(pattern))) for role, pattern in found.items()}

    def _carpool(self, *words: str) -> None:
        command = [sys.executable, "-m", "carpool.entry", *words]
        subprocess.run(
            command, cwd=self._place, env=self._env, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL
        )

    def _call(self, calls: int) -> None:
        """One agent behind a shim, one call after the other."""
        command = [sys.executable, "-c", _SHIM, str(self._place / "shim.prof")]
        with subprocess.Popen(
            command, cwd=self._place, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as shim:
            hello = {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "r", "version": "1"},
            }
            _ask(shim, 0, "initialize", hello)
            for number in range(1, calls + 1):
                answer = _ask(shim, number, "tools/call", {"name": "echo__echo", "arguments": {"text": "hi"}})
                if answer.get("result", {}).get("isError", "error" in answer):
                    raise RuntimeError(f"the echo server cannot be called: {answer}")
            assert shim.stdin is not None
            shim.stdin.close()
            shim.wait(LIMIT_S)

    def _read(self, file: Path) -> Profile:
        found: dict[str, tuple[int, float]] = {}
        stats: Any = pstats.Stats(str(file))
        for (path, line, name), (_, count, own_s, _, _) in stats.stats.items():
            if path.startswith(str(self._tree)):
                found[f"{Path(path).relative_to(self._tree)}:{line} {name}"] = (count, own_s)
        return found


def _ask(shim: "subprocess.Popen[bytes]", number: int, method: str, params: Any) -> dict[str, Any]:
    assert shim.stdin is not None
    assert shim.stdout is not None
    line = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    shim.stdin.write(line.encode() + b"\n")
    shim.stdin.flush()
    while True:
        answer: dict[str, Any] = json.loads(shim.stdout.readline())
        if answer.get("id") == number and "method" not in answer:
            return answer


def unpack(revision: str, target: Path) -> Path:
    """The files of a revision."""
    target.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(HERE), "archive", revision], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    return target


def source_rows(tree: Path) -> dict[str, str]:
    """Figures of the sources of one tree, by what they are."""
    rows: dict[str, str] = {}
    every: dict[str, FileFacts] = {}
    for package, root in PACKAGES.items():
        facts = {
            str(file.relative_to(tree)): read_facts(file.read_text())
            for file in sorted((tree / root).rglob("*.py"))
        }
        every.update(facts)
        rows[f"{package}: modules"] = f"{len(facts)}"
        rows[f"{package}: code lines"] = f"{sum(each.code_lines for each in facts.values()):,}"
        rows[f"{package}: statements"] = f"{sum(each.statements for each in facts.values()):,}"
    sizes = {name: each.code_lines for name, each in every.items() if not name.endswith("__init__.py")}
    rows["all: modules"] = f"{len(every)}"
    rows["all: code lines"] = f"{sum(each.code_lines for each in every.values()):,}"
    rows["all: statements"] = f"{sum(each.statements for each in every.values()):,}"
    rows["code lines of the median file"] = f"{statistics.median(sizes.values()):g}"
    largest = sorted(sizes.items(), key=lambda each: -each[1])[:3]
    rows["largest files"] = ", ".join(f"{name} {lines}" for name, lines in largest)
    rows[f"functions above {LONG_LINES} lines"] = f"{sum(each.long_functions for each in every.values())}"
    roots = {name: lines for each in every.values() for name, lines in each.roots.items()}
    rows.update({f"lines of {name}.__init__": f"{roots[name]}" for name in ROOT_CLASSES if name in roots})
    return rows


def call_rows(hops: Mapping[str, list[Hop]]) -> dict[str, str]:
    """Figures of one `tools/call`, by what they are."""
    rows = {}
    for role, found in hops.items():
        rows[f"{role}: functions on the way of a call"] = f"{len(found)}"
        rows[f"{role}: files"] = f"{len({hop.file for hop in found})}"
        rows[f"{role}: calls of our functions per call"] = f"{sum(hop.calls for hop in found):.1f}"
    together = [hop for found in hops.values() for hop in found]
    rows["all three: calls of our functions per call"] = f"{sum(hop.calls for hop in together):.1f}"
    rows["all three: files"] = f"{len({hop.file for hop in together})}"
    return rows


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def report(revision: str) -> None:
    """Print all of it."""
    with tempfile.TemporaryDirectory(prefix="cps", dir="/tmp") as scratch:
        rows: dict[str, dict[str, str]] = {}
        hops: dict[str, dict[str, list[Hop]]] = {}
        for at, name in enumerate((revision, "HEAD")):
            tree = unpack(name, Path(scratch) / f"tree{at}")
            few, more = (
                ProfiledTree(tree, Path(scratch) / f"{at}-{calls}").profile(calls) for calls in (FEW, MORE)
            )
            hops[name] = {role: per_call(few[role], more[role], MORE - FEW) for role in ROLES}
            rows[name] = source_rows(tree) | call_rows(hops[name])
        then, now = rows[revision], rows["HEAD"]
    names = dict.fromkeys([*then, *now])
    print(table(["figure", revision, "HEAD"], ([n, then.get(n, "-"), now.get(n, "-")] for n in names)))
    for name, by_role in hops.items():
        together = [(role, hop) for role, found in by_role.items() for hop in found]
        costly = sorted(together, key=lambda each: -each[1].own_us)[:HOPS]
        print(f"\nThe {HOPS} costliest hops of a call at {name} (own CPU time, with the profiler's share):\n")
        cells = ([role, hop.name, f"{hop.calls:.1f}", f"{hop.own_us:.1f}"] for role, hop in costly)
        print(table(["process", "function", "times", "µs"], cells))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.structure_report", description=__doc__.split("\n")[0]
    )
    parser.add_argument("revision", help="what to compare HEAD with: a commit, a tag")
    report(parser.parse_args().revision)


if __name__ == "__main__":
    main()
