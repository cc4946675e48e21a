"""Warnings of `carpool check` about servers that are Python modules, without running any of their code.

Owns the reading of a module's text: it finds functions whose parameters have no types. It sees only the text
of the module itself, below the server's directory; a module that is installed elsewhere is not searched for.
Knows nothing of: what a schema is (`pymodule`), terminals.
"""

import ast
import os
import warnings
from collections.abc import Callable, Iterator

from carpool.pymodule.function_choice import untyped_text
from carpool_protocol.config.schema.expand import from_home
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.config.schema.server_kinds import module_name_problem
from carpool_protocol.config.text.problems import ConfigProblem, render_path
from carpool_protocol.ids import ServerName

Expand = Callable[[ServerConfig, str], str | None]
"""Returns a text of a server with its variables filled in; None if one is missing."""


def module_warnings(config: Config, expand: Expand, home: str, workspace: str) -> list[str]:
    """Return the warnings about all enabled servers of this kind."""
    found: list[str] = []
    for server in config.servers.values():
        if server.python is None or server.disabled:
            continue
        name, cwd = expand(server, server.python), expand(server, server.cwd)
        if name is None or cwd is None:
            continue
        base = workspace if server.project else home
        whole = os.path.join(base, from_home(cwd, home))
        strict = f"; with `strict` that keeps {server.name} from starting" if server.strict else ""
        found += [
            f"{server.name}: {text}{strict}" for text in _module_source(whole, name, strict=bool(strict))
        ]
    return found


def wrong_names(config: Config, expand: Expand) -> dict[ServerName, str]:
    """Return the servers whose `python` names no module, with a sentence about each."""
    found: dict[ServerName, str] = {}
    for server in config.servers.values():
        name = expand(server, server.python) if server.python is not None and not server.disabled else None
        if name is not None and (why := module_name_problem(name)) is not None:
            line = server.lines.get(("python",), server.lines[()])
            where = render_path((*server.under, "python"))
            found[server.name] = ConfigProblem(server.file, line, where, why).render()
    return found


def untyped_functions(source: str, file: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (where, name, parameters) of each public function with parameters that have no types.

    Raises `SyntaxError` or `ValueError` if the text is no Python; `RecursionError` or `MemoryError` if it is
    nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an escape in a string: whoever runs the module is told
        tree = ast.parse(source, file)
    named = _all_of(tree)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_") if named is None else node.name not in named:
            continue
        args = node.args
        bare = [each.arg for each in (*args.posonlyargs, *args.args) if each.annotation is None]
        bare += [f"*{args.vararg.arg}"] if args.vararg else []
        bare += [each.arg for each in args.kwonlyargs if each.annotation is None]
        bare += [f"**{args.kwarg.arg}"] if args.kwarg else []
        if bare:
            line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield f"{file}:{line}", node.name, bare


def _module_source(directory: str, module: str, *, strict: bool) -> list[str]:
    path = os.path.join(directory, *module.split("."))
    for file in (f"{path}.py", os.path.join(path, "__init__.py")):
        try:
            with open(file, encoding="utf-8") as opened:
                source = opened.read()
            found = list(untyped_functions(source, os.path.basename(file)))
        except (OSError, UnicodeDecodeError):
            continue
        except (RecursionError, MemoryError):
            return [f"{os.path.basename(file)}: is too deeply nested to be looked at"]
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            return [f"{os.path.basename(file)}:{line}: is no Python"]
        return [untyped_text(*each, strict=strict) for each in found]
    return []


def _all_of(tree: ast.Module) -> list[str] | None:
    """Return the value of `__all__`; None if it is missing or is not a literal."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            try:
                return [str(each) for each in ast.literal_eval(node.value)]
            except (ValueError, TypeError):
                return None
    return None
