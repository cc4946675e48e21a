"""The kinds of problems that `carpool doctor` finds, with a paragraph for each (docs/problems.md).

Owns their ids, which stay the same between releases. Refuses to know how a problem is found (`diagnose`).
"""

from typing import Final, Literal, NamedTuple

from carpool_protocol.machine.stop_commands import DRAIN_S

Fault = Literal["machine", "configuration", "server", "carpool"]
"""Whose fault a problem is."""


class ProblemKind(NamedTuple):
    """One kind of problem."""

    id: str
    fault: Fault
    title: str
    explanation: str
    may_be_meant: bool = False
    """True if it may be what the user wants: it is named, and nothing is wrong."""


RESTART_COSTS: Final = (
    f"Calls that still run after {DRAIN_S:g} s are ended, and servers lose what they keep in memory."
)
"""The sentence that stands before each restart of carpool."""

KINDS: Final[dict[str, ProblemKind]] = {
    kind.id: kind
    for kind in (
        ProblemKind(
            "config-broken",
            "configuration",
            "The configuration file is broken",
            "The file cannot be read as it is. A carpool that runs goes on with the last reading that"
            " was good; one that does not run cannot start, and agents get no tools. The message "
            "names the line and what was expected there. `carpool check` shows the file as carpool "
            "reads it.",
        ),
        ProblemKind(
            "server-misconfigured",
            "configuration",
            "A server is configured in a way that cannot work",
            "The entry of one server is wrong; all other servers work. The message names the setting."
            " The shapes that other programs use are understood, but not every key of theirs.",
        ),
        ProblemKind(
            "program-missing",
            "machine",
            "The program of a server is not there",
            "The command of a server is not in the PATH that servers get, its file does not exist or "
            "is not executable, or a server over a URL or a Python module needs packages that are not"
            " installed. `uvx` comes with uv, `npx` with Node.js, `docker` with Docker. Servers get "
            "the PATH of your login shell, then that of carpool's start; `carpool status` shows it. A "
            "directory in a project, and so in a git clone, is there only if your login shell names it: "
            'with `"login_shell": false`, or with a shell that does not answer, run `carpool trust '
            "--place DIRECTORY`.",
        ),
        ProblemKind(
            "other-configuration",
            "configuration",
            "carpool runs with another configuration than is expected",
            "One carpool serves all your programs. It reads the configuration file that the program or "
            "terminal names that starts it. A program that does not pass on `XDG_CONFIG_HOME` or "
            "`CARPOOL_CONFIG` finds another file than your terminal, or none. Servers of the file that is "
            "not read are missing. Nothing is wrong if you have named the file yourself, for instance with "
            "`carpool up --config`: then the exit code of `carpool doctor` is 0.",
        ),
        ProblemKind(
            "second-carpool",
            "configuration",
            "Two carpools run with one configuration",
            "A program that does not pass on `CARPOOL_RUNTIME_DIR` uses the usual runtime directory, and "
            "starts a carpool there. Each server then runs twice, and commands reach only the carpool of "
            "their own environment. Carpools are found in the usual runtime directory, and where the state "
            "directory has its usual place.",
        ),
        ProblemKind(
            "variable-unset",
            "configuration",
            "A variable that a server needs is not set",
            "The configuration has `${NAME}` without a default, and NAME is set neither here nor in "
            "the `env_file`. An agent whose environment has it can use the server all the same.",
        ),
        ProblemKind(
            "project-untrusted",
            "configuration",
            "The servers of a project wait for your trust",
            "This directory has a project file with servers. They start once you have looked at them "
            "and have said `carpool trust`, because whoever wrote the file chose the commands in it.",
        ),
        ProblemKind(
            "server-failing",
            "server",
            "A server does not start, or breaks again and again",
            "The process of the server ends, does not answer `initialize`, or writes lines to stdout "
            "that are not MCP. Its last error is in the message; `carpool logs SERVER` has what it "
            "wrote and what carpool did. A token that is missing or out of date often shows up there.",
        ),
        ProblemKind(
            "offers-nothing",
            "server",
            "A server runs and offers nothing",
            "The answer of the server to `initialize` declares no capability, and the server does not list "
            "tools when it is asked all the same. Agents see nothing of it.",
        ),
        ProblemKind(
            "lists-shortened",
            "server",
            "A part of what a server lists is left out",
            "Agents drop a whole list for one entry that they cannot read, and the list that they get has "
            "the tools of all servers. So carpool leaves out what is not valid: an `outputSchema` that "
            "agents cannot compile, a member of a wrong type, entries over 256 KiB, what is over the bound "
            "of all lists. The tools that are listed can be called. The log of the server has the same "
            "sentence.",
        ),
        ProblemKind(
            "stdout-noise",
            "server",
            "A server prints to stdout",
            "On stdout a server may write messages of MCP only, one on each line. carpool drops every "
            "other line and keeps it in the log of the server. Many servers work all the same. One that "
            "prints before its greeting, or in place of it, may never greet. Log lines belong to stderr; "
            "many servers have an option or a variable for it.",
        ),
        ProblemKind(
            "version-wrong",
            "machine",
            "A server says that it needs another version of Node.js or Python",
            "The server does not start, and npm, uv, pip or the server itself has written which version "
            "it needs. The line is in the message. That is a strong hint and no proof: doctor reads what "
            "was written, it does not compare versions. `npx` uses the `node` that comes first in the "
            'PATH of the server, so an `env` with a `PATH` chooses another one; for Python write `"args": '
            '["--python", "3.12", ...]` before the package with `uvx`.',
        ),
        ProblemKind(
            "package-not-found",
            "configuration",
            "The package of a server is not found",
            "The server does not start, because npm, PyPI or the registry of containers has no package of "
            "that name or version. Most often it is mistyped; a private package needs a login of `npm`, "
            "`pip` or `docker`, which carpool does not know.",
        ),
        ProblemKind(
            "hook-failing",
            "configuration",
            "A hook fails",
            "A hook of yours exits with an error, raises an exception, prints no valid verdict, takes too "
            "long or cannot be started. carpool then refuses the calls that the hook must check, or lets "
            "them through, as `on_failure` says. No server is at fault. `carpool docs hooks` has the form of "
            "a verdict.",
        ),
        ProblemKind(
            "hook-denies-all",
            "configuration",
            "A hook denies every call",
            "A hook of yours gets the calls of all servers and has let none of them pass so far. Agents get "
            "its reason. Nothing is wrong if you mean it, so `carpool status` says that all is well, and the "
            "exit code of `carpool doctor` is 0. A hook for some tools has a `match` (`carpool docs hooks`).",
            may_be_meant=True,
        ),
        ProblemKind(
            "calls-failing",
            "server",
            "Calls for a server fail",
            "At least half of the calls that ended in the last minutes failed: because of the server or "
            "of carpool, not because of the agent (`carpool docs counters`, *Failing servers*). It may be "
            "one call. `carpool stats --by tool` shows the tools and the codes, `carpool docs errors` "
            "explains the codes.",
        ),
        ProblemKind(
            "old-daemon",
            "carpool",
            "An older carpool is still running",
            "carpool was updated, and the processes that serve agents are those from before. `carpool"
            f" restart --all` replaces them, and agents notice a pause. {RESTART_COSTS} `--fix` does the "
            "same.",
        ),
        ProblemKind(
            "socket-stale",
            "carpool",
            "A socket is left over from a carpool that was killed",
            "A file stands where the socket of carpool should be, and nothing listens on it. The next "
            "start takes its place by itself, so this only explains what you see. `--fix` removes a "
            "socket, and no other file.",
        ),
        ProblemKind(
            "descriptors-used-up",
            "machine",
            "No descriptor is left for another agent",
            "Each connection of an agent needs a descriptor of carpool's broker, and their number is "
            "limited (`ulimit -n`, `LimitNOFILE` of a systemd unit). The agents that are connected go on, "
            "and verbs of operators work: the last descriptors are kept for them. A new agent is refused "
            "and told so. `carpool status` shows who is connected, `carpool disconnect SESSION` ends one.",
        ),
        ProblemKind(
            "no-room-to-start",
            "machine",
            "The machine lets carpool start no further process",
            "A process of a server could not be started because the machine has no descriptor, process or "
            "memory left for it. It is no failure of the server: calls wait, idle processes of other servers "
            "are ended to make room, and carpool tries again by itself. A call that waits longer than "
            "`wait_s` is refused with that reason. `carpool status` shows what runs, and `carpool stop "
            "SERVER` ends one.",
        ),
        ProblemKind(
            "broker-silent",
            "carpool",
            "carpool runs and does not answer",
            "A process holds the lock of the runtime directory, and its broker does not answer. It "
            "may be stopped (SIGSTOP, a suspended machine), or starting. `carpool logs --daemon` has "
            "what it did last.",
        ),
        ProblemKind(
            "supervisor-silent",
            "carpool",
            "A process of carpool that runs servers is away or does not answer",
            "Calls to the servers that it runs wait for it. carpool starts one that has died again by "
            "itself, and replaces one that hangs. One that was stopped (SIGSTOP, a debugger) is left alone: "
            "it goes on where it was.",
        ),
        ProblemKind(
            "door-closed",
            "machine",
            "The HTTP door cannot open",
            "The address in `http` cannot be listened on: another program has the port, or the "
            "address is not one of this machine. Agents over HTTP cannot connect; all others can. "
            "carpool tries again by itself.",
        ),
        ProblemKind(
            "cluster-file-missing",
            "configuration",
            "A file that the cluster needs is missing",
            "`cluster.credentials`, `cluster.ca` or, with `tcp://`, the key of this node is not there or "
            "cannot be read, so this machine is in no cluster. Everything local goes on.",
        ),
        ProblemKind(
            "cluster-unreachable",
            "machine",
            "The cluster cannot be reached",
            "The NATS server does not answer, or refuses this node; or the settings of `cluster` cannot "
            "work. Servers of other nodes are not there, and everything local goes on (`carpool docs "
            "cluster`). A NATS server needs JetStream (`nats-server -js`).",
        ),
        ProblemKind(
            "node-name-twice",
            "configuration",
            "Two nodes of a cluster have one name",
            "Each node needs a name of its own; without `cluster.node` it is that of the machine, which "
            "copied images of machines share. Frames for that name reach both of them.",
        ),
        ProblemKind(
            "node-silent",
            "machine",
            "A node of the cluster is silent",
            "A node that `cluster.peers` names, or that was there since this node's process started and has "
            "not left by itself, is not heard. Its machine or its network is down, or its carpool does not "
            "run. Agents here do not see its servers.",
        ),
        ProblemKind(
            "server-nowhere",
            "configuration",
            "A server is placed on nodes of which none offers it",
            "`on` names labels or nodes that this node has not, and no node that is reached offers the "
            "server now. The nodes with the label are away, or no node has it.",
        ),
        ProblemKind(
            "server-at-node",
            "machine",
            "A server of another node is not reached there",
            "The server runs at another node of the cluster, and agents here get no session with it: that "
            "node is draining, is away, or does not offer the server any more. carpool asks again by itself "
            "as soon as an agent needs it.",
        ),
        ProblemKind(
            "node-version",
            "carpool",
            "A node runs another version of carpool",
            "Nodes of different versions work together as long as they speak one version of the protocol "
            "between nodes; the log of the node's process says if they do not. What is new in one of them "
            "may be missing.",
        ),
        ProblemKind(
            "clocks-differ",
            "machine",
            "The clocks of two nodes are far apart",
            "No call and no session depends on clocks, but times in logs and in the audit of two nodes do "
            "not fit together. `carpool story` puts the steps of both in order all the same. With `tls://` "
            "a clock that is far off can make a certificate count as expired.",
        ),
        ProblemKind(
            "not-private",
            "machine",
            "A directory of carpool is not private",
            "The runtime directory or the state directory belongs to another user, is open to others, or "
            "lies where other users may replace files. Somebody could then read what carpool writes or put"
            " a socket of their own there, so no carpool starts. `--fix` closes a directory of yours that "
            "is only too open.",
        ),
        ProblemKind(
            "secrets-readable",
            "machine",
            "A file with secrets can be read by all users",
            "The configuration or an `env_file` holds a variable or header with the name of a secret "
            "(`..._TOKEN`, `Authorization`), and every user of this machine can read the file. Only names "
            "are looked at, so a secret under another name is not found. `--fix` does `chmod 600` for a "
            "file of your own, and leaves files of projects alone.",
        ),
        ProblemKind(
            "not-writable",
            "machine",
            "A directory of carpool cannot be written",
            "carpool keeps sockets in the runtime directory, and logs, approvals and lists in the "
            "state directory. `carpool docs files` has both, and the variables that choose other places.",
        ),
        ProblemKind(
            "disk-full",
            "machine",
            "The disk is nearly full",
            "Less than 50 MB are left where carpool writes. Calls go on; logs, the audit and cached "
            "lists are lost.",
        ),
        ProblemKind(
            "names-cut",
            "configuration",
            "Names of tools are shortened",
            "Some programs take no name above a length, with their own prefix before it. carpool cuts"
            " such names and adds a hash. A shorter `tools_prefix` of the server keeps them whole "
            "(`carpool docs names`).",
        ),
        ProblemKind(
            "shadowed",
            "configuration",
            "A server or a project file is shadowed",
            "Two servers have one name, or a directory has two project files. Of servers the one of the "
            "project or named workspace wins over yours, in that directory; of project files only the "
            "first is read (`carpool docs workspaces` has the order). The message names the winner first.",
        ),
        ProblemKind(
            "configuration-warning",
            "configuration",
            "The configuration has a warning",
            "Something in the file has no effect, replaces something else, or is unsafe. `carpool "
            "check` shows the settings that result.",
        ),
    )
}
"""All kinds by id, the most serious first."""
