"""What goes on in a simulated world with workspaces: a storm over files, and sessions on the move.

Owns the mixture of what changes in files, what is trusted, switched, moved and read again, beside all that a
storm has anyway. Knows nothing of: what must hold (`workspaces`, `workspace_files`).
"""

from random import Random

from msgspec.structs import replace

from carpool_broker.core.model import events as bv
from carpool_broker.core.model.events import SourceId
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Root
from tests.world.sim.agents import SimAgent
from tests.world.sim.faults import LIMITS, SHARINGS, STATELESS_TRAITS, TRAITS, WISHES, Storm
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.quiesce import quiesce
from tests.world.sim.workspace_files import (
    CWDS,
    ITS,
    NAMED,
    PROJECTS,
    SERVERS,
    USER,
    VARIABLES,
    ConfiguredServer,
    Layer,
    ServerProgram,
)
from tests.world.sim.workspaces import WorkspaceWorld
from tests.world.sim.world import POLICY

KINDS = (*TRAITS, *STATELESS_TRAITS)
WHERE = tuple(map(SourceId, (*CWDS, *(f"{cwd}|{name}" for cwd in ("free", "q") for name in NAMED))))


def workspace_storm(seed: int) -> WorkspaceWorld:
    """Thirty seconds of storm, then calm. Raises what is wrong. Odd seeds cut links and kill daemons."""
    rng = Random(f"moves {seed}")
    world = ChangingWorkspaceWorld(seed, [], max_processes=rng.choice((6, 24)))
    try:
        WorkspaceStorm(world, KINDS, agents=rng.randint(3, 8), duration_s=30, disasters=seed % 2 == 1)
        world.run(30)
        world.clear_up()
        quiesce(world)
        world.everybody_leaves()
    finally:
        world.demolish()
    return world


class ChangingWorkspaceWorld(WorkspaceWorld):
    """A house with something in it, which changes."""

    def furnish(self) -> None:
        """See `WorkspaceWorld`."""
        places, dice = self.places, self.dice
        self.sources = WHERE
        for name in (USER, *NAMED):
            self._fill(places.layers[name])
        for name in PROJECTS:
            self._fill(places.projects[name], ITS)
            if dice.random() < 0.7:
                places.write_project(name)
        places.env_file = {name: f"file-{name}" for name in VARIABLES if dice.random() < 0.3}
        places.write_user()
        for name in PROJECTS:
            if dice.random() < 0.5:
                places.trust(name)

    def _fill(self, layer: Layer, before: str = "") -> None:
        for name in SERVERS:
            layer.pop(name, None)
            if self.dice.random() < 0.5:
                layer[name] = self._written(before)

    def _written(self, before: str = "") -> ConfiguredServer:
        dice = self.dice
        commands = [each for each in self.people if each.startswith(ITS) is bool(before)]
        command = dice.choice(commands) if commands and dice.random() < 0.5 else self._person(before)
        return ConfiguredServer(
            command,
            variable=dice.choice(("", "", *VARIABLES)),
            place=dice.choice(("", "", "", "workspace", "cwd")),
            roots=dice.choice(("", "", "", "", "agent", "workspace")),
            at_home=dice.random() < 0.2,
            disabled=dice.random() < 0.1,
            offline=dice.random() < 0.15,
        )

    def _person(self, before: str) -> str:
        dice, command = self.dice, f"{before}c{len(self.people)}"
        traits = replace(dice.choice(KINDS), marked=True)
        policy = replace(
            POLICY, sharing=dice.choice(SHARINGS), spares=dice.randint(0, 1), **dice.choice(LIMITS)
        )
        era = dice.choice(WISHES[traits.speaks])
        self.people[command] = ServerProgram(
            traits, policy, era, stop_first=dice.random() < 0.2 and not traits.deaf
        )
        return command

    # --- what changes -----------------------------------------------------------------------------------

    def change(self) -> None:
        """Something in the files, or in what is trusted; the broker sees it."""
        if self.broker.stopped:
            return
        places, dice = self.places, self.dice
        match dice.randrange(10):
            case 0:
                places.write_user(broken=True)
            case 1:
                places.env_file = {
                    name: f"{dice.randrange(3)}-{name}" for name in VARIABLES[: dice.randint(0, 2)]
                }
                places.write_user()
            case 2:
                places.named ^= {dice.choice(list(NAMED))}
                places.write_user()
            case 3 | 4:
                self._alter(places.layers[dice.choice((USER, *NAMED))])
                places.write_user()
            case 5:
                name = dice.choice(PROJECTS)
                self._alter(places.projects[name], ITS)
                places.write_project(name)
            case 6:
                name = dice.choice(PROJECTS)
                if name in places.there and dice.random() < 0.5:
                    places.remove_project(name)
                else:
                    places.write_project(name, broken=dice.random() < 0.5)
            case 7:
                places.revoke(dice.choice(PROJECTS))
            case _:
                places.trust(dice.choice(PROJECTS))
        self.reload()

    def _alter(self, layer: Layer, before: str = "") -> None:
        name = self.dice.choice(SERVERS)
        if name in layer and self.dice.random() < 0.4:
            del layer[name]
        elif name in layer and self.dice.random() < 0.4:
            layer[name] = replace(layer[name], disabled=not layer[name].disabled)
        else:
            layer[name] = self._written(before)

    def switch(self) -> None:
        """An operator turns a server on or off, for everybody or for one session."""
        broker, dice = self.broker, self.dice
        if broker.alive and not broker.stopped:
            session = dice.choice(["", *self.agents])
            on = dice.choice((True, False, False) if session else (True, False, None))
            broker.turn(dice.choice(SERVERS), on=on, session=session)

    def move(self) -> None:
        """A session goes to another workspace: it says so, or its agent's roots are others."""
        if not self.agents or not self.broker.alive or self.broker.stopped:
            return
        agent, dice = self.agents[self.dice.choice(list(self.agents))], self.dice
        tenant = self.of(agent.session)
        assert tenant is not None
        there = dice.choice([*NAMED, *(f"{self.places.base}/{cwd}" for cwd in CWDS)])
        if dice.random() < 0.5:
            self.use_workspace(agent, there)
        elif isinstance(agent, SimAgent) and agent.capabilities.roots and agent.greeted:
            tenant.roots = tuple(Root(f"file://{self.places.base}/{cwd}") for cwd in dice.sample(CWDS, 2))
            self.broker.feed(bv.RootsListChanged(agent.session))

    # --- afterwards -------------------------------------------------------------------------------------

    def operable(self) -> list[PoolKey]:
        """See `World`."""
        return [spec.key for spec in self.broker.core.sources.wanted_pools().pools]

    def rest(self) -> None:
        """See `World`."""
        for command, person in self.people.items():
            self.people[command] = replace(person, policy=replace(person.policy, limit_age_s=0.0))
        self.reload()

    def clear_up(self) -> None:
        """All files are good again and trusted; everything is on that they say."""

        def tidy() -> None:
            self.places.write_user()
            for name in PROJECTS:
                if name in self.places.there:
                    self.places.write_project(name)
                    self.places.trust(name)
            self.reload()
            for name in SERVERS:
                self.broker.turn(name, on=None)

        while not self.broker.alive or self.broker.stopped:
            self.run(1.0)
        tidy()
        self.sources = tuple(self.dice.sample(WHERE, 2))

    def everybody_leaves(self) -> None:
        """Nothing is left of anybody."""
        for agent in [*self.agents.values(), *(carrier.agent for carrier in self.away)]:
            self.leave(agent)
        self.run(POLICY.idle_s + 1.0)
        configuration, core = self.broker.configuration, self.broker.core
        left = [*configuration._contexts, *configuration.overrides.session_overrides, *core.sessions]
        if left or self.moves:
            raise Violation(f"{left} are gone and not forgotten, or moves are: {self.moves}")
        sources = core.sources.sources.keys() | configuration._sources.keys()
        if len(sources) != 1:
            raise Violation(f"nobody is there, and there are the sources {sources}")
        if configuration.layers.workspaces.projects:
            raise Violation(f"projects are watched for nobody: {configuration.layers.workspaces.projects}")


class WorkspaceStorm(Storm):
    """A storm with all that too."""

    world: ChangingWorkspaceWorld

    def __init__(self, world: ChangingWorkspaceWorld, *args: object, **settings: object) -> None:
        super().__init__(world, *args, **settings)  # type: ignore[arg-type]
        self.names = len(SERVERS)
        self._repeat(1.2, world.move)
        self._repeat(3.0, world.switch)

    def _change_config(self) -> None:
        self.world.change()

    def _operate(self) -> None:
        keys = self.world.operable()
        if keys:
            self.world.operate(self.rng.choice(keys), self.rng.choice(("start", "stop", "restart")))
