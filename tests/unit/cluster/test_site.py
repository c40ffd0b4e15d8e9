"""The run's folder must be one that all machines of a run see."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gearshift.cluster import site as sites
from gearshift.cluster.coordinate import Engine, coordinate
from gearshift.cluster.saving import Vault
from gearshift.cluster.serve import serve
from gearshift.cluster.site import Site, write_state
from gearshift.cluster.work import work
from gearshift.errors import UserError

NOBODY: Any = None  # whom a process that sees no folder never comes to ask


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "SHARED_SECONDS", 0.0)


def site_in(folder: Path) -> Site:
    return Site(NOBODY, folder, str(folder), 1, "ipc", str(folder / "s"), token="0123")


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "the folder of another run"])
def test_who_does_not_see_the_folder_ends_the_run_with_a_sentence(tmp_path: Path, there: str) -> None:
    folder = tmp_path / "runs" / "shop"
    if there != "nothing":
        folder.mkdir(parents=True)
    if there == "the folder of another run":
        write_state(folder, token="4567")
    site = site_in(folder)
    assert site.new_start(1, "node") == 1
    for process in (serve, work):
        with pytest.raises(
            UserError, match=rf"does not see the run's folder {folder}, .* set checkpoint.path"
        ):
            process(NOBODY, site)
    with pytest.raises(UserError, match="does not see the run's folder"):
        coordinate(NOBODY, site, NOBODY)


def test_who_sees_it_goes_on(tmp_path: Path) -> None:
    write_state(tmp_path, token="0123")
    site = site_in(tmp_path)
    site.enter()
    assert site.new_start(7, "node") == 1 and site.new_start(8, "node") == 2
    assert site.hub_place() == (8, "node") and site.restarts() == 1
    write_state(tmp_path, starts_before=2)  # as when it is resumed
    assert site.new_start(9, "node") == 3 and site.restarts() == 0
    site.enter()


def test_a_coordinator_that_was_replaced_writes_nothing(tmp_path: Path) -> None:
    """Cut off and given up, it may come back to a folder in which another goes on."""

    class SteppedDown(Exception):
        """A process that has ended."""

    def step_down() -> None:
        raise SteppedDown

    site = site_in(tmp_path)
    first, second = (
        SimpleNamespace(
            start=site.new_start(pid, "node"), site=site, staff=SimpleNamespace(step_down=step_down)
        )
        for pid in (7, 8)
    )
    old, new = Vault(cast(Engine, first)), Vault(cast(Engine, second))
    assert new.new_incarnation() == 1
    for write in (old.new_incarnation, lambda: old.commit(1, "step-3-1", {})):
        with pytest.raises(SteppedDown):
            write()
    assert new.new_incarnation() == 2
