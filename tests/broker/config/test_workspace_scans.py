"""The scans of workspaces: what is kept follows from the scans alone, whatever came and went before."""

from hypothesis import given
from hypothesis import strategies as st

from carpool_broker.config.locations import Location, WorkspaceRequest
from carpool_broker.config.scan import WorkspaceScan
from carpool_broker.config.workspaces import Project, Workspaces
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.project import FoundWorkspace

REQUESTS = [WorkspaceRequest("", f"/{number}") for number in range(4)]
LOCATIONS = [Location(root=base) for base in ("/a", "/b", "/c")]
FILES = ["", "/a/.mcp.json", "/b/.mcp.json"]

scans = st.builds(
    WorkspaceScan,
    st.sampled_from(REQUESTS),
    st.just(0),
    st.sampled_from(LOCATIONS),
    st.builds(FoundWorkspace, st.just("/"), st.sampled_from(FILES)),
)
acts = st.lists(st.one_of(scans, st.sampled_from(REQUESTS), st.sets(st.sampled_from(REQUESTS))))


@given(acts)
def test_locations_and_projects_are_those_of_the_scans(
    given_acts: list[WorkspaceScan | WorkspaceRequest | set[WorkspaceRequest]],
) -> None:
    workspaces = Workspaces("/home", "", LastGoodReadings())
    for act in given_acts:
        if isinstance(act, WorkspaceScan):
            workspaces.projects.setdefault(act.workspace.file, Project())  # it is read, or known
            workspaces.replace_scans([act])
        elif isinstance(act, WorkspaceRequest):
            workspaces.forget(act)
        else:
            workspaces.retain(act)
        places = {each.location for each in workspaces.scans.values()}
        assert {each for each in LOCATIONS if workspaces.workspace_at(each).root} == places
        files = {workspaces.workspace_at(each).file for each in places}
        assert {file for file in FILES if file in workspaces.projects} == files
