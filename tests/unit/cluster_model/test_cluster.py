import json
from math import inf

import pytest

from gearshift.cluster_model.cluster import (
    Bursts,
    ClusterModel,
    Compute,
    Crash,
    Failures,
    Lognormal,
    Network,
    Preemption,
    Slow,
    SlowPeriod,
)
from gearshift.errors import UserError

EVERYTHING = ClusterModel(
    4,
    Compute(0.01, 1e-5),
    slow=(Slow(5, (3,)),),
    lognormal=(Lognormal(0.2),),
    bursts=(Bursts(0.1, 10, (0, 1)),),
    slow_periods=(SlowPeriod(3, 10), SlowPeriod(3, 10, 20)),
    crashes=(Crash(5),),
    failures=(Failures(3600, 30),),
    preemptions=(Preemption(1, 2, (2,)),),
    network=Network(0.001, pull_bytes=1e6),
    cores=2,
    cpu=Compute(0.01),
    seed=3,
)


@pytest.mark.parametrize("cluster", [ClusterModel(1), EVERYTHING])
def test_json_and_back(cluster: ClusterModel) -> None:
    text = json.dumps(cluster.as_json(), allow_nan=False)
    assert ClusterModel.from_json(json.loads(text)) == cluster


def test_few_words_are_enough() -> None:
    cluster = ClusterModel.from_json({"workers": 2, "slow": [{"factor": 2, "workers": [1]}]})
    assert cluster == ClusterModel(2, slow=(Slow(2, (1,)),))


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="no worker 8: the 8 workers are 0 to 7"):
        ClusterModel(8, slow=(Slow(5, (8,)),))
    with pytest.raises(UserError, match="at least 1 worker"):
        ClusterModel(0)
    with pytest.raises(UserError, match="a cluster has no `slowness`: it has bursts, compute"):
        ClusterModel.from_json({"workers": 2, "slowness": []})


def test_the_way_to_the_servers() -> None:
    network = Network(latency=0.01, bandwidth=1e9, pull_bytes=1e8, push_bytes=5e7)
    assert (network.pull, network.push) == pytest.approx((0.11, 0.06))
    assert Network().pull == 0 and Network().bandwidth == inf
