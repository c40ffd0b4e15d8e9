"""Requests to a live training: refused at once, or pending in order."""

from __future__ import annotations

import pytest

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.errors import UserError
from gearshift.training.plan import PlannedSwitch
from gearshift.training.requests import ResizeRequest, SwitchRequest
from gearshift.training.timing import When
from gearshift.training.training import Training


def training(**settings: object) -> Training:
    trainer = gs.Trainer(global_batch=96, workers=4, **settings)  # type: ignore[arg-type]
    data = gs.read(make_batch(PLAIN, 500), PLAIN)
    return trainer.prepare(gs.models.LR(PLAIN), data).training


def test_requests_are_pending_in_their_order() -> None:
    requests = training().requests
    requests.request_switch("gba", {}, "slow worker")
    requests.request_resize(2)
    first, second = requests.pending.get(), requests.pending.get()
    assert isinstance(first, SwitchRequest) and (first.name, first.reason, first.by) == (
        "gba",
        "slow worker",
        "user",
    )
    assert isinstance(second, ResizeRequest) and second.workers == 2
    assert requests.pending.empty()


@pytest.mark.parametrize("workers", [0, -1, 1001, 2.5, True, 5])
def test_a_number_of_workers_that_cannot_be_is_refused_and_nothing_is_pending(workers: int) -> None:
    """5: the global batch of 96 does not divide among them."""
    requests = training().requests
    with pytest.raises(UserError):
        requests.request_resize(workers)
    assert requests.pending.empty()


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("gbaa", {}, "gba"),
        ("gba", {"max_lags": 2}, "max_lag"),
        ("gba", {"global_batch": 64}, "a switch keeps the global batch, 96"),
    ],
)
def test_a_switch_that_cannot_be_is_refused_and_nothing_is_pending(
    name: str, settings: dict[str, object], sentence: str
) -> None:
    requests = training().requests
    with pytest.raises(UserError, match=sentence):
        requests.request_switch(name, settings)
    assert requests.pending.empty()


def test_a_planned_switch_is_requested_once_when_it_is_due_and_waits_for_requests_before_it() -> None:
    switches = (PlannedSwitch(When(share=0.5), "gba"), PlannedSwitch(When(share=0.75), "sync"))
    one = training(strategy={"name": "sync", "switch": switches})
    progress, requests = one.progress, one.requests
    progress.examples = 200
    requests.request_planned_switch(progress, 500)
    assert requests.pending.empty()
    progress.examples = 400
    requests.request_planned_switch(progress, 500)
    requests.request_planned_switch(progress, 500)  # the first is still pending
    request = requests.pending.get()
    assert isinstance(request, SwitchRequest) and (request.name, request.by) == ("gba", "plan")
    assert requests.pending.empty()
    progress.switched = 1
    requests.request_planned_switch(progress, 500)
    request = requests.pending.get()
    assert isinstance(request, SwitchRequest) and request.name == "sync"
    progress.switched = 2
    requests.request_planned_switch(progress, 500)
    assert requests.pending.empty()


def test_a_planned_switch_that_cannot_be_is_refused_before_the_run() -> None:
    with pytest.raises(UserError, match="gba"):
        training(strategy={"name": "sync", "switch": (PlannedSwitch(When(share=0.5), "gbaa"),)})
