"""The runs that features are judged by: each is a script for a program in one of the arms.

A scenario returns what was seen directly and through carpool; None where there is no such arm.

Knows nothing of: what should be seen (`tests.programs.features`).
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tests.kit.live import SERVERS
from tests.programs.bridges import BridgedServer
from tests.programs.homes import SHAPES
from tests.programs.loopback import Loopback
from tests.programs.program import Entry, Program
from tests.programs.run import Observation, run_program
from tests.programs.script import Hook, Script, ScriptedCall, Turn, turn
from tests.programs.stage import ARMS, GATEWAY, Arm, ProgramStage

TOUR: Final = (
    "pid", "facts", "large", "image", "structured", "structured_alone", "fails", "steps", "asks_user",
    "links", "grow", "echo", "shrink", "echo",
)  # fmt: skip
"""The tools of the odd server that the tour calls, one in each turn. Links come after all other answers,
since a program may end there.
"""
REFUSED: Final = ("rejects",)
"""The tool of a run of its own: a program may end there as well."""
LONG_S: Final = 70
"""A call that takes longer than carpool's own limit, `timeout_s`."""
LIMIT_S: Final = 3
TOLD_S: Final = 6
"""So long a call takes that tells its progress, and carpool's limit for a call that is silent."""
VARIABLE: Final = "ODD_TOKEN"
VALUE: Final = "told-by-the-shell"
DEATHS: Final = (
    "start",
    "broker killed between turns",
    "restart --all between turns",
    "broker killed in a call",
    "restart --all in a call",
    "server killed between turns",
    "server killed in a call",
    "call after that",
    "supervisor killed between turns",
    "supervisor killed in a call",
    "launcher killed between turns",
    "launcher killed in a call",
    "call after the launcher was killed",
    "down and up between turns",
)
"""What happens in each turn of the run of deaths, in its order."""
LOST_IN_A_CALL: Final = (
    "server killed in a call",
    "supervisor killed in a call",
    "launcher killed in a call",
    "down and up in a call",
)
"""Deaths that end the server with the call."""
HTTP_TURNS: Final = (
    "call",
    "broker killed between turns",
    "broker killed in a call",
    "grow",
    "pause",
    "look",
    "restart --all between turns",
    "grow after restart --all",
    "grow again",
    "pause",
    "look after restart --all",
    "door killed between turns",
    "down and up between turns",
)
"""What happens in each turn of the run over HTTP, in its order."""
DIRECT_DEATHS: Final = ("start", "server killed between turns", "server killed in a call", "call after that")


@dataclass(frozen=True)
class ArmPair:
    """What was seen in both arms."""

    direct: Observation | None
    through: Observation | None

    def both(self) -> tuple[Observation, Observation]:
        assert self.direct is not None
        assert self.through is not None
        return self.direct, self.through

    def behind(self) -> Observation:
        assert self.through is not None
        return self.through


IDLE_TURNS: Final = 3
"""So many turns a program gets to take in a list that has been answered, before a tool is called."""

Scenario = Callable[[Program, Loopback], ArmPair]


def _both(one_arm: Callable[[Program, Loopback, Arm], Observation]) -> Scenario:
    def run(program: Program, loopback: Loopback) -> ArmPair:
        direct, through = (one_arm(program, loopback, arm) for arm in ARMS)
        return ArmPair(direct, through)

    return run


def _once_listed(program: Program, stage: ProgramStage, then: Turn) -> Script:
    """Turns of a tool of the program's own, once it has an answer to its list of tools; then this turn."""
    assert program.idle is not None
    idle = Turn((program.idle,))
    return [replace(idle, before=stage.wait_for_list), *[idle] * (IDLE_TURNS - 1), then]


def _tour(program: Program, loopback: Loopback, arm: Arm) -> Observation:
    """Every tool of the odd server, in a carpool that has served agents like this one before."""
    with ProgramStage(arm, loopback, server_environ={"ODD_ENTRY": "told"}) as stage:
        stage.up()
        stage.greet_askable_agent()
        script = [turn("odd", tool) for tool in TOUR]
        for count, tool in enumerate(("grow", "shrink") if program.lists_again else (), 2):
            # The list that the program asks for now is in the request after this turn.
            at = TOUR.index(tool) + 1
            script[at] = replace(script[at], before=partial(stage.wait_for_lists, count))
        return run_program(program, stage, script)


def _refused_call(program: Program, loopback: Loopback, arm: Arm) -> Observation:
    with ProgramStage(arm, loopback) as stage:
        stage.up()
        stage.greet_askable_agent()
        return run_program(program, stage, [turn("odd", tool) for tool in REFUSED])


def _first_session(program: Program, loopback: Loopback, arm: Arm) -> Observation:
    """One call, in a carpool that knows its servers and has not yet served an agent like this one."""
    with ProgramStage(arm, loopback) as stage:
        stage.up()
        return run_program(program, stage, [turn("odd", "pid")])


def _later_tools(program: Program, loopback: Loopback, arm: Arm) -> Observation:
    """A server that adds a tool for agents that can be asked, once they are initialized; carpool knows it."""
    with ProgramStage(arm, loopback, server_options={"odd": ("--later",)}) as stage:
        stage.up()
        return run_program(program, stage, [turn("odd", "pid")])


def _long_call(program: Program, loopback: Loopback, arm: Arm) -> Observation:
    """A call that tells no progress for more than a minute."""
    with ProgramStage(arm, loopback) as stage:
        stage.up()
        stage.greet_askable_agent()
        return run_program(program, stage, [turn("odd", "slow", seconds=LONG_S)])


def _told_call(program: Program, loopback: Loopback, arm: Arm) -> Observation:
    """A call that tells its progress, for longer than carpool waits for a silent one."""
    with ProgramStage(arm, loopback, server_settings={"timeout_s": LIMIT_S}) as stage:
        stage.up()
        stage.greet_askable_agent()
        return run_program(program, stage, [turn("odd", "steps", seconds=TOLD_S, count=4 * TOLD_S)])


def _down_in_call(program: Program, loopback: Loopback) -> ArmPair:
    """`carpool down` and `carpool up` within a call. It is a run of its own: some programs are lost then."""
    with ProgramStage("carpool", loopback) as stage:
        stage.up()
        stage.greet_askable_agent()
        return ArmPair(None, run_program(program, stage, [stage.slow_call(stage.down_and_up)]))


def _deaths(program: Program, loopback: Loopback, arm: Arm) -> Observation:
    with ProgramStage(arm, loopback) as stage:
        stage.up()
        stage.greet_askable_agent()
        pid = ScriptedCall("odd", "pid")
        acts: dict[str, Turn] = {
            "start": Turn((pid,)),
            "broker killed between turns": Turn((pid,), before=stage.kill_broker),
            "restart --all between turns": Turn((pid,), before=stage.restart_all),
            "broker killed in a call": stage.slow_call(stage.kill_broker) if arm == "carpool" else Turn(),
            "restart --all in a call": stage.slow_call(stage.restart_all, ends_first=True)
            if arm == "carpool"
            else Turn(),
            "server killed between turns": Turn(
                (ScriptedCall("plain", "pid"),), before=partial(stage.kill_server, "plain")
            ),
            "server killed in a call": stage.slow_call(partial(stage.kill_server, "odd")),
            "call after that": Turn((pid,)),
            "supervisor killed between turns": Turn((pid,), before=stage.kill_supervisor),
            "supervisor killed in a call": stage.slow_call(stage.kill_supervisor),
            "launcher killed between turns": Turn((pid,), before=stage.kill_launcher),
            "launcher killed in a call": stage.slow_call(stage.kill_launcher),
            # `carpool connect` comes back with the next call, and `down` ends it only after that.
            "call after the launcher was killed": Turn((pid,)),
            "down and up between turns": Turn((pid,), before=stage.down_and_up),
        }
        names = DEATHS if arm == "carpool" else DIRECT_DEATHS
        return run_program(program, stage, [acts[name] for name in names])


def _home(shape: str, program: Program, loopback: Loopback, arm: Arm) -> Observation:
    """One call in a home of this shape; carpool was started in the user's shell and has tried each server."""
    with ProgramStage(arm, loopback, shape=shape) as stage:
        stage.up(start=False)
        if arm == "carpool":
            stage.carpool("start", *stage.servers)
        return run_program(program, stage, [turn("odd", "facts")])


def _cold(shape: str, program: Program, loopback: Loopback) -> ArmPair:
    """The program starts carpool, and calls a tool once carpool has answered its list.

    Where the places of files are not the usual ones, the entry is that of `carpool setup`, for programs that
    it knows.
    """
    by_setup = program.setup is not None and bool(SHAPES[shape].variables)
    with ProgramStage("carpool", loopback, shape=shape, configured=not by_setup) as stage:
        script = _once_listed(program, stage, turn("odd", "facts"))
        prepare = partial(_set_up, program, stage) if by_setup else None
        return ArmPair(None, run_program(program, stage, script, prepare=prepare))


def _set_up(program: Program, stage: ProgramStage, model: str) -> None:
    """Write the program's files with the servers of this run, and move these servers to carpool."""
    assert program.setup is not None
    program.configure(stage.home, stage.servers, model)
    done = stage.carpool("setup", "--yes", "--user-only", "--client", program.setup.client)
    assert done.returncode == 0, done.stdout + done.stderr
    program.setup.edit_entry(stage.home, stage.recorded)


def _second_start(language: str, program: Program, loopback: Loopback) -> ArmPair:
    """carpool has learned its servers, went down and was started again from a shell of this language."""
    with ProgramStage("carpool", loopback) as stage:
        stage.up()
        stage.greet_askable_agent()
        stage.down()
        stage.up({**stage.shell_environ(), "LANG": language}, start=False)
        return ArmPair(None, run_program(program, stage, []))


def _variables(program: Program, loopback: Loopback) -> ArmPair:
    """Servers that the program's own file gives a variable of the shell, before and after `carpool setup`.

    carpool runs already, started from where the variable is not set.
    """
    told = {VARIABLE: f"${{{VARIABLE}}}"}
    with ProgramStage("direct", loopback, server_environ=told, variables={VARIABLE: VALUE}) as stage:
        direct = run_program(program, stage, [turn("odd", "facts")])
    with ProgramStage(
        "carpool", loopback, server_environ=told, variables={VARIABLE: VALUE}, configured=False
    ) as stage:

        def move(model: str) -> None:
            _set_up(program, stage, model)
            without = {name: value for name, value in stage.shell_environ().items() if name != VARIABLE}
            stage.up(without, start=False)

        script = _once_listed(program, stage, turn("odd", "facts"))
        return ArmPair(direct, run_program(program, stage, script, prepare=move))


def _gateway(stage: ProgramStage) -> BridgedServer:
    """The odd server at a URL, without carpool."""
    odd = stage.servers["odd"]
    program = (sys.executable, "-S", "-E", str(SERVERS / GATEWAY))
    return BridgedServer(stage, lambda port: [*program, str(port), odd.command, *odd.args], "listens")


def _http(program: Program, loopback: Loopback, arm: Arm) -> Observation:
    """The program comes over HTTP; the list of tools changes before and after `restart --all`.

    What ends the sessions of carpool's door restarts the server in the direct arm.
    """
    with ProgramStage(arm, loopback) as stage:
        if arm == "carpool":
            stage.up(http=True)
            stage.greet_askable_agent()
            return _over_http(program, stage, stage.url(), stage.restart_all, stage.down_and_up)
        with _gateway(stage) as gateway:
            again = gateway.die_and_come_back
            return _over_http(program, stage, gateway.url(), again, again)


def _over_http(
    program: Program, stage: ProgramStage, url: str, restart: Hook, down_and_up: Hook
) -> Observation:
    pid, echo, grow = (ScriptedCall("odd", tool) for tool in ("pid", "echo", "grow"))
    # A change of the list is told at once, and the program asks for the list while this call runs.
    pause = ScriptedCall("odd", "steps", {"seconds": 1})
    script = [
        Turn((pid,)),
        Turn((pid,), before=stage.kill_broker),
        stage.slow_call(stage.kill_broker),
        Turn((grow,)),
        Turn((pause,)),
        Turn((echo,)),
        Turn((pid,), before=restart),
        Turn((grow,)),
        Turn((grow,)),
        Turn((pause,)),
        Turn((echo,)),
        Turn((pid,), before=stage.kill_door if stage.arm == "carpool" else None),
        Turn((pid,), before=down_and_up),
    ]
    assert len(script) == len(HTTP_TURNS)
    name = "carpool" if stage.arm == "carpool" else "odd"

    def configure(model: str) -> None:
        program.configure(stage.home, {name: Entry(url=url)}, model)

    return run_program(program, stage, script, prepare=configure)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "tour": _both(_tour),
    "refused call": _both(_refused_call),
    "first session": _both(_first_session),
    "later tools": _both(_later_tools),
    "long call": _both(_long_call),
    "told call": _both(_told_call),
    "deaths": _both(_deaths),
    "down in a call": _down_in_call,
    "variables": _variables,
    "http": _both(_http),
    "same shell": partial(_second_start, "C.UTF-8"),
    "German shell": partial(_second_start, "de_DE.UTF-8"),
    "cold fresh": partial(_cold, "fresh"),
    "cold xdg": partial(_cold, "xdg"),
    **{f"home {shape}": _both(partial(_home, shape)) for shape in SHAPES},
}
