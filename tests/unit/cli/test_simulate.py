import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Shell


def table(out: str) -> dict[str, list[str]]:
    """The lines of the table, by strategy."""
    return {line.split("  ")[0]: line.split() for line in out.splitlines()[4:]}


def test_one_slow_worker(shell: Shell) -> None:
    code, out, err = shell("simulate", "--slow", "3=5x", "--examples", "4M", "--strategies", "sync,gba,async")
    assert (code, err) == (0, "")
    first, second, *_ = out.splitlines()
    assert first == (
        "Simulated, timing only: 8 workers, global batch 8,192 = 8 x 1,024, 4,000,000 examples, seed 1; slow 3=5x."
    )
    assert (
        second
        == "Possible = sum of worker rates = 73,728 ex/s while all are present; no strategy beats 4.50 x sync."
    )
    rows = table(out)
    assert list(rows) == ["sync", "gba", "async"]
    assert rows["sync"][1:] == ["16,387", "1.00", "22", "%", "0.0", "/", "0", "-", "0"]
    assert 4.4 < float(rows["gba"][2]) <= 4.5
    assert rows["gba"][-2:] == ["4", "0"]


def test_duplicated_examples_have_a_column_if_there_are_any(shell: Shell) -> None:
    strategies = ("--strategies", "sync,balanced")
    code, out, _ = shell("simulate", "--bursts", "10%=10x", *strategies)
    assert code == 0 and out.splitlines()[2].split()[-2:] == ["duplicated", "discarded"]
    rows = table(out)
    assert rows["sync"][-2:] == ["0", "0"]
    assert int(rows["balanced"][-2].replace(",", "")) > 0 and rows["balanced"][-1] == "0"
    assert float(rows["balanced"][2]) > 2.0
    assert "duplicated" not in shell("simulate", "--strategies", "sync,gba")[1]


def test_a_very_slow_worker_loses_its_data_and_the_user_is_told(shell: Shell) -> None:
    code, out, _ = shell("simulate", "--slow", "3=10x", "--strategies", "sync,gba,gba:max_lag=100")
    assert code == 0
    assert table(out)["gba"][-4:] == ["too", "late", "1.4", "%"]
    (sentence,) = [line for line in out.splitlines() if line.startswith("gba: ")]
    assert sentence.startswith(
        "gba: worker 3 loses 100 % of the examples computed there, because the gradients arrive too late;"
    )
    assert sentence.endswith("Raise max_lag, or give slow workers smaller batches.")


def test_strategies_have_settings(shell: Shell) -> None:
    out = shell("simulate", "--strategies", "sync,gba:decay=inverse:max_lag=2,backup_workers:backups=4")[1]
    assert list(table(out))[:3] == ["sync", "gba:decay=inverse:max_lag=2", "backup_workers:backups=4"]


def test_a_strategy_of_ones_own(shell: Shell) -> None:
    own = "gearshift.sync.global_batch:GlobalBatch"
    strategies = f"gba:max_lag=2,{own}:max_lag=2,{own}"
    code, out, err = shell("simulate", "--strategies", strategies, "--switch", f"50%={own}:max_lag=2")
    assert (code, err) == (0, "")
    rows = table(out)
    assert list(rows)[:4] == [*strategies.split(","), f"gba:max_lag=2, {own}:max_lag=2 from 50%"]
    assert rows[f"{own}:max_lag=2"][1:] == rows["gba:max_lag=2"][1:]


def test_several_that_lose_theirs_are_counted(shell: Shell) -> None:
    out = shell("simulate", "--workers", "16", "--slow", "0-4=20x")[1]
    assert "gba: workers 0, 1, 2 and 2 more lose up to 100 % of the examples" in out


def test_too_many_workers_for_the_global_batch(shell: Shell) -> None:
    out = shell("simulate", "--workers", "32", "--batch", "1024", "--strategies", "gba")[1]
    assert "gba: 32 workers for 8 gradients per step; the accuracy of sync is claimed for at most one" in out
    assert table(out)["gba"][2] == "-"  # nothing to compare with


@pytest.mark.parametrize("when", ["50%", "500k", "30.5s"])
def test_a_switch_is_a_line_of_its_own(shell: Shell, when: str) -> None:
    out = shell("simulate", "--slow", "3=5x", "--switch", f"{when}=gba")[1]
    rows = table(out)
    assert list(rows) == ["sync", "gba", "async", f"sync, gba from {when}"]
    assert float(rows[f"sync, gba from {when}"][5]) == pytest.approx(2 / (1 + 1 / 4.5), rel=0.05)


def test_json(shell: Shell) -> None:
    everything = (
        "simulate --slow 3=5x --slow 2=2x@1s-2s --lognormal .2 --bursts 5%=3x --fail 1min+1s --fail 1@2s+1s "
        "--preempt 0@0s-1s --notice 1s --latency 1ms --bandwidth 1GB --pull-bytes 1MB --push-bytes 1MB "
        "--all-reduce 0.01 --cores 6 --cpu-seconds .05 --examples 500k --seed 3 --json out.json"
    )
    assert shell(*everything.split())[0] == 0
    figures = json.loads(Path("out.json").read_text())
    assert figures["cluster"]["slow_periods"] == [{"factor": 2.0, "start": 1.0, "end": 2.0, "workers": [2]}]
    assert figures["sync_by_arithmetic"] is None  # workers come and go
    for arm in figures["strategies"]:
        assert arm["applied"] + arm["discarded"] == arm["examples"] == 500_000
        assert arm["examples_per_second"] == pytest.approx(arm["applied"] / arm["seconds"])
        assert set(arm["staleness"]) == {"mean", "p99", "max"}
    again = shell(*everything.split())[1]
    assert json.loads(Path("out.json").read_text()) == figures
    assert "fail 1min+1s 1@2s+1s" in again


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--slow 3=5", "slow `3=5` is not understood; write it like 3=5x, 0-3=2x or 3=5x@60s-120s"),
        ("--slow 8=5x", "there is no worker 8: the 8 workers are 0 to 7"),
        ("--strategies sync,gbaa", "unknown strategy `gbaa`. Did you mean gba?"),
        ("--strategies mine:LateBus", "strategy `mine:LateBus`: there is no module `mine`; is its folder on"),
        ("--strategies :", "strategy `:`: write module:Class, such as mine:LateBus"),
        ("--switch 50%=gba:2", "strategy `gba:2`: settings are written gba:key=value"),
        ("--strategies gba:lag=2", "strategy gba has no setting `lag`: it has max_lag, decay, divisor"),
        ("--strategies gba:max_lag", "strategy `gba:max_lag`: settings are written gba:key=value"),
        (
            "--strategies gba:max_lag=x",
            "strategy `gba:max_lag=x`: max_lag is `x`; Input should be a valid number",
        ),
        (
            "--strategies gba:decay=x",
            "strategy `gba:decay=x`: decay is `x`; Input should be 'cut', 'exponential'",
        ),
        (
            "--strategies buffered_async:gradients_per_step=-1",
            "strategy `buffered_async:gradients_per_step=-1`: grad",
        ),
        ("--strategies backup_workers:backups=8", "backup_workers: backups=8 leaves none of 8 workers"),
        ("--strategies ,", "--strategies is empty; choose from sync, balanced,"),
        ("--workers 6", "sync: global_batch 8192 does not divide among 6 workers. Nearest: workers="),
        ("--workers 0", "--workers is `0`; it must be at least 1"),
        ("--workers 2M", "--workers is `2M`; the maximum is 1,000,000"),
        ("--workers some", "--workers is `some`; expected a whole number"),
        ("--batch 1000", "sync: global_batch 8192 does not divide among 8 workers x batch 1000."),
        ("--step-seconds 0", "--step-seconds is `0`; expected a duration"),
        ("--switch gba", "--switch `gba` is not understood; write it like 50%=gba"),
        ("--switch 150%=gba", "--switch is `150%`; a share lies between 0 and 1"),
        ("--switch soon=gba", "--switch is `soon`; expected a duration"),
        ("--cores 0", "--cores is `0`; it must be above 0"),
        ("--pull-bytes 1MB", "transfer times need a link speed; add --bandwidth, such as 1GB"),
        ("--preempt all@1s", "every worker has left permanently, and"),
    ],
)
def test_mistakes_are_one_sentence(shell: Shell, arguments: str, sentence: str) -> None:
    code, _, err = shell("simulate", *arguments.split())
    assert code == 2
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_it_imports_no_torch() -> None:
    code = """
import sys
from gearshift.cli.app import run
assert run(["simulate", "--examples", "10k"]) == 0
print([name for name in ("torch", "numpy", "pyarrow") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_auto_tells_what_it_did_and_why(shell: Shell, tmp_path: Path) -> None:
    words = ["simulate", "--slow", "3=5x@20s-60s", "--examples", "8M", "--strategies", "sync,auto:patience=4"]
    code, out, err = shell(*words, "--json", str(tmp_path / "found.json"))
    assert (code, err) == (0, "")
    changes = [line for line in out.splitlines() if line.startswith("auto:patience=4: ")]
    assert "sync -> gba at 2" in changes[0] and "worker 3 needs" in changes[0] and "x as fast" in changes[0]
    assert "gba -> sync at 6" in changes[1] and "equally fast again" in changes[1] and len(changes) == 2
    found = json.loads((tmp_path / "found.json").read_text())["strategies"][1]
    assert [change["strategy"] for change in found["automatic"]] == ["gba", "sync"]
    assert found["vs_sync"] > 1.2


def test_many_changes_are_counted(shell: Shell) -> None:
    slow = [word for i in range(12) for word in ("--slow", f"3=5x@{20 * i + 5}s-{20 * i + 15}s")]
    out = shell("simulate", "--examples", "16M", "--strategies", "auto", *slow)[1]
    assert len([line for line in out.splitlines() if line.startswith("auto: ")]) == 11
    assert "more changes, all in --json" in out


def test_a_bad_setting_of_auto_is_named(shell: Shell) -> None:
    for word, said in [
        ("auto:marginn=1", "no setting `marginn`"),
        ("auto:margin=x", "margin is `x`"),
        ("auto:margin=0", "margin must be above 0"),
    ]:
        code, _, err = shell("simulate", "--strategies", word)
        assert code == 2 and said in err
