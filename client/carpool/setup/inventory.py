"""The files on this machine that `carpool setup` looks at, and the plans that result from them.

Owns the single reading of these files: programs' files, files with rules about tools, files of programs that
are not looked into, and git's answer about the project's files. Knows nothing of: who is asked, what is
told.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping

from msgspec import Struct

from carpool.check.server_path import is_found
from carpool.setup import carpool_files, file_io, git
from carpool.setup.client_files import candidates
from carpool.setup.entry_environment import non_default_places
from carpool.setup.model import ClientFile, GitStatus, KeptInPlace, SetupPlan
from carpool.setup.other_programs import OtherProgramFound, check_other_program, others
from carpool.setup.permission_rules import PermissionFile, PermissionRule, rule_files, rules
from carpool.setup.plan import make_plan
from carpool.setup.trial import ServerKey, TrialResult
from carpool.terminal.verb_output import EXIT_USAGE, fail
from carpool_protocol.config.edit.edit import CannotEditError


class SetupInventory(Struct, frozen=True):
    """All files that setup looks at, read once."""

    project: str
    sources: list[ClientFile]
    untouched: list[KeptInPlace]
    known: GitStatus
    """Git's answer about the project's files."""
    named: tuple[str, ...]
    home: str
    rules: list[tuple[PermissionFile, str]]
    """The files that may hold rules about tools, with their texts."""
    others: list[OtherProgramFound]
    """The files of programs that setup does not look into."""

    def rules_of(self, plan: SetupPlan) -> list[PermissionRule]:
        """Return the rules that name tools which get another name by a plan."""
        return [each for file, text in self.rules for each in rules(file, text, plan.moved)]

    def plan(
        self, *, project: bool, separate: bool, tried: Mapping[ServerKey, TrialResult] = {}
    ) -> SetupPlan:
        """Make a plan. `project`: the project's files are included; `tried`: the results of a trial."""
        own, secrets = carpool_files.own_files(self.home)
        try:
            return make_plan(
                [each for each in self.sources if project or each.candidate.scope == "user"],
                own,
                carpool_files.project_file(self.project) if self.project and project else None,
                secrets,
                carpool_files.command,
                home=self.home,
                alive=os.path.isdir,
                starts=lambda program: is_found(program, os.environ, login_shell=own.login_shell),
                named=self.named,
                remote=importlib.util.find_spec("mcp") is not None,
                separate=separate,
                shared=self.known.tracked,
                tried=tried,
                places=non_default_places(os.environ, os.getuid()),
            )
        except CannotEditError as error:
            fail(f"nothing is changed: {error}", EXIT_USAGE)


def inventory(named: tuple[str, ...], project: str, home: str) -> SetupInventory:
    """Find and read all files.

    `named`: only these programs are looked at; `project`: a directory, or empty.
    """
    chosen = [
        each
        for each in candidates(os.environ, home, sys.platform, project)
        if not named or each.client.id in named
    ]
    sources, untouched = file_io.read_client_files(chosen, named)
    its = [each.path for each in sources if each.candidate.scope == "project"]
    known = git.git_status(project, [*its, os.path.join(project, carpool_files.PROJECT_FILE)] if its else [])
    files = rule_files(os.environ, home, sys.platform, project)
    beside = others(os.environ, home, sys.platform, project)
    return SetupInventory(
        project,
        sources,
        untouched,
        known,
        named,
        home,
        [(file, text) for file in files for _, text in file_io.texts_of(file.path)],
        [
            said
            for each in beside
            for path, text in file_io.texts_of(each.path)
            if not named and (said := check_other_program(each, path, text)) is not None
        ],
    )
