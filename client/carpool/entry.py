"""The `carpool` command's first steps: send the small processes on before anything big is imported.

`connect` and `run` become shims and `up` becomes the launcher; each must stay as small as its own imports
(rule 20). `--version` and `version` need none. Everything else is the click command line. Before that no
directory of a project stays on `sys.path`.
"""

import gc
import sys

from carpool import import_path


def main() -> None:
    """Run `carpool` with this process's arguments and end with its exit code."""
    import_path.clean()
    if sys.argv[1:2] == ["help"]:  # `carpool help VERB` is `carpool VERB --help`
        sys.argv[1:] = [*(each for each in sys.argv[2:3] if not each.startswith("-")), "--help"]
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in {"connect", "run"}:
        from carpool.shim.shim import main as shim

        sys.exit(shim(verb, sys.argv[2:]))
    from carpool.terminal.output import run_to_end

    if sys.argv[1:] in (["--version"], ["-V"]):
        run_to_end(_print_version)
    if sys.argv[1:] == ["version"]:
        run_to_end(_print_installation)
    if verb == "up":
        from carpool.launcher.up import up as launcher

        run_to_end(lambda: launcher(sys.argv[2:]))
    gc.disable()  # what is imported stays: collections in between find nothing, and take their time
    from carpool.cli.main import main as command_line

    gc.freeze()
    gc.enable()
    run_to_end(command_line)


def _print_version() -> int:
    """Print what click prints, without it."""
    from carpool_protocol.bootstrap.release import RELEASE

    sys.stdout.write(f"carpool, version {RELEASE}\n")
    return 0


def _print_installation() -> int:
    """Print the version, and the Python and the environment that carpool is installed in."""
    _print_version()
    python = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(f"Python {python}, in {sys.prefix}\n")
    return 0


if __name__ == "__main__":
    main()
