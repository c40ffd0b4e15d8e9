"""The run's folder must be one that all machines of a run see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gearshift import lease, run_folder
from gearshift.cluster import site as sites
from gearshift.cluster.coordinate import Engine, coordinate
from gearshift.cluster.saving import Vault
from gearshift.cluster.serve import serve
from gearshift.cluster.site import Site, write_state
from gearshift.cluster.work import work
from gearshift.engine.roles.messages import To
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


def test_who_lost_the_run_to_another_session_says_so_and_writes_nothing(tmp_path: Path) -> None:
    """A coordinator that Ray restarts after somebody has resumed its run elsewhere."""
    (tmp_path / "checkpoints").mkdir()
    run_folder.claim(tmp_path)
    write_state(tmp_path, token=run_folder.hand_over(tmp_path))
    before = (tmp_path / sites.STATE).read_text()
    site = site_in(tmp_path)
    site.new_start(7, "node")
    for process in (serve, work):
        with pytest.raises(lease.Fenced, match=r"was taken over by process \d+ on .* \(lease 1\)"):
            process(NOBODY, site)
    with pytest.raises(lease.Fenced, match="was taken over"):
        coordinate(NOBODY, site, NOBODY)
    assert (tmp_path / sites.STATE).read_text() == before
    run_folder.finish(tmp_path, "done")


def test_a_fenced_coordinator_leaves_the_processes_to_the_one_of_its_session(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    mine = run_folder.claim(tmp_path)
    stepped_down: list[int] = []
    staff = SimpleNamespace(step_down=lambda: stepped_down.append(1))
    for token, expected in ((mine.session, [1]), ("another", [])):
        stepped_down.clear()
        engine = SimpleNamespace(site=replace(site_in(tmp_path), token=token), staff=staff)
        Engine._step_down_if_replaced(cast(Engine, engine))
        assert stepped_down == expected
    run_folder.finish(tmp_path, "done")


def test_starts_are_counted_beyond_the_coordinator(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    site = replace(site_in(tmp_path), token=run_folder.claim(tmp_path).session)
    for _ in range(3):
        site.record_start("worker", 1)
    site.record_start("worker", 0)
    site.record_end("worker", 0)
    site.record_start("worker", 0)
    assert site.starts() == {To("worker", 1): 3, To("worker", 0): 1}
    run_folder.finish(tmp_path, "done")


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
