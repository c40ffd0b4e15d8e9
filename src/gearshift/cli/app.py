"""The command line: names, arguments and help. Each command is implemented in a separate file, imported when it runs.

`--help` must stay fast, so nothing here imports torch, numpy, pyarrow, pydantic or rich. A user error is one message
on stderr and exit code 2; `--debug` adds the traceback. Exit code 0 means success.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from gearshift.cli.help_format import Sections
from gearshift.errors import DataWarning, UserError, nearest_name
from gearshift.run import startup_interrupts

app = typer.Typer(
    name="gearshift",
    cls=Sections,
    rich_markup_mode=None,
    help="Train click-through-rate models on click logs.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EVERYDAY, ON_A_RUN, LAB = (
    "Everyday",
    "On a run (RUN = folder, beginning of its name, or last)",
    "Tools and experiments",
)

JsonFile = Annotated[
    Path | None, typer.Option("--json", "--report", metavar="FILE", help="Write the results as JSON.")
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings that override the file (docs/config.md)."),
]
MissingColumns = Annotated[
    Literal["fail", "as_missing"],
    typer.Option(help="How to treat an absent feature column: as an error, or as missing values."),
]
By = Annotated[
    str | None,
    typer.Option("--by", metavar="COLUMN", help="Also show the results for each value of this column."),
]


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Train click-through-rate models on click logs."""


@app.command(rich_help_panel=EVERYDAY)
def demo(
    folder: Annotated[Path, typer.Argument(help="Where to put the example files.")] = Path("demo"),
    examples: Annotated[str, typer.Option(help="Number of examples to generate, such as 500k.")] = "1.5M",
) -> None:
    """Generate a click log, train on it, and show what to do next (two to three minutes)."""
    from gearshift.cli.demo import demo

    raise typer.Exit(demo(folder, examples))


@app.command(rich_help_panel=EVERYDAY)
def init(
    data: Annotated[
        Path, typer.Argument(metavar="FILE", help="A click log: CSV, TSV, JSON lines, libfm or Parquet.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="How to read the file: data.csv={quote: none}, data.bad_lines, ..."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="YAML")] = None,
    label: Annotated[str | None, typer.Option(help="The label column, if the guess is wrong.")] = None,
    time: Annotated[str | None, typer.Option(help="The time column, if the guess is wrong.")] = None,
    positive: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Which label values mean a click: yes, '[a, b]', '> 0', '>= 4'."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="The encoding if it is not UTF-8, such as latin-1.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the config.")] = False,
) -> None:
    """Inspect a file and write a config that explains every guess."""
    from gearshift.cli.init import init

    init(
        data,
        output,
        label=label,
        time=time,
        positive=positive,
        encoding=encoding,
        force=force,
        settings=settings or [],
    )


@app.command(rich_help_panel=EVERYDAY)
def train(
    config: Annotated[str | None, typer.Argument(metavar="CONFIG", help="A YAML file.")] = None,
    settings: Settings = None,
    json: JsonFile = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN[@CHECKPOINT]", help="Continue this run from its checkpoint."),
    ] = None,
    init_from: Annotated[
        str | None, typer.Option("--init-from", metavar="RUN", help="Start with the embeddings of this run.")
    ] = None,
) -> None:
    """Train a model: gearshift train clicks.yaml model=dcnv2 train.epochs=2"""
    from gearshift.cli.train import train

    raise typer.Exit(train(config, settings or [], json_file=json, resume=resume, init_from=init_from))


@app.command(rich_help_panel=EVERYDAY)
def evaluate(
    runs_and_data: Annotated[
        list[str], typer.Argument(metavar="RUN[@CHECKPOINT] [RUN] [DATA]... [data.KEY=VALUE]...")
    ],
    by: By = None,
    json: JsonFile = None,
    missing_columns: MissingColumns = "fail",
) -> None:
    """Evaluate a model on data (default: the run's test data); with two runs, compare them on the same examples."""
    from gearshift.cli.evaluate import evaluate

    evaluate(runs_and_data, by=by, json_file=json, missing_columns=missing_columns)


@app.command(rich_help_panel=EVERYDAY)
def predict(
    run: Annotated[str, typer.Argument(metavar="RUN[@CHECKPOINT]")],
    data: Annotated[list[str], typer.Argument(metavar="DATA... [data.KEY=VALUE]...")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .csv or .parquet file.")],
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="COLUMN", help="Also copy this column to the output."),
    ] = None,
    missing_columns: MissingColumns = "fail",
) -> None:
    """Write a probability for each example; labels are not needed."""
    from gearshift.cli.predict import predict

    predict(run, data, output, keep=keep or [], missing_columns=missing_columns)


@app.command(rich_help_panel=ON_A_RUN)
def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder with the runs.")] = Path(
        "runs"
    ),
) -> None:
    """List the runs: state, step, speed, AUC."""
    from gearshift.cli.runs import runs

    runs(folder)


@app.command(rich_help_panel=ON_A_RUN)
def status(
    run: Annotated[str, typer.Argument(metavar="[RUN]")] = "last",
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit code: 0 healthy or done, 3 recovering, 4 stalled, 5 failed, 6 stopped, 7 unknown.",
        ),
    ] = False,
    stalled_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1, help="Time without a step after which the run counts as stalled."
        ),
    ] = 300.0,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait until it is clear whether a run on other machines is dead (about 30 s).",
        ),
    ] = False,
    json: JsonFile = None,
) -> None:
    """Report the health of a run: state, last step, checkpoint age, faults; for probes with --exit-code."""
    from gearshift.cli.status import status

    code = status(run, exit_code=exit_code, stalled_after=stalled_after, json_file=json, wait=wait)
    raise typer.Exit(code)


@app.command(rich_help_panel=ON_A_RUN)
def clean(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="Folders that contain runs; default: runs."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
) -> None:
    """Remove leftovers of dead runs on this machine: temporary folders, sockets, partial checkpoints, Ray clusters."""
    from gearshift.cli.clean import clean

    clean(folders or [Path("runs")], dry_run=dry_run)


@app.command(rich_help_panel=ON_A_RUN)
def watch(run: Annotated[str, typer.Argument(metavar="[RUN]")] = "last") -> None:
    """Show a live run of another process until it ends. Ctrl-C does not stop the run."""
    from gearshift.cli.watch import watch

    raise typer.Exit(watch(run))


@app.command(rich_help_panel=ON_A_RUN)
def metrics(
    run: Annotated[str, typer.Argument(metavar="[RUN]")] = "last",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve the metrics on this port of 127.0.0.1 until Ctrl-C."),
    ] = None,
) -> None:
    """Print the metrics of a live run and of each of its processes as Prometheus text."""
    from gearshift.cli.metrics import metrics

    metrics(run, port)


@app.command(rich_help_panel=ON_A_RUN)
def switch(
    words: Annotated[list[str], typer.Argument(metavar="[RUN] STRATEGY [KEY=VALUE]...")],
    reason: Annotated[str, typer.Option(help="The reason, recorded in the event log.")] = "",
) -> None:
    """Change how the workers of a live run synchronise: gearshift switch last gba max_lag=4"""
    from gearshift.cli.control import switch

    switch(words, reason=reason)


@app.command(rich_help_panel=ON_A_RUN)
def resize(
    workers: Annotated[int, typer.Option(min=1, help="The new number of workers.")],
    run: Annotated[str, typer.Argument(metavar="[RUN]")] = "last",
) -> None:
    """Add or remove workers of a live run; the global batch stays the same: gearshift resize last --workers 16"""
    from gearshift.cli.control import resize

    resize(run, workers)


@app.command(rich_help_panel=ON_A_RUN)
def stop(run: Annotated[str, typer.Argument(metavar="[RUN]")] = "last") -> None:
    """Stop a live run after its current step; it saves first and can be resumed."""
    from gearshift.cli.control import stop

    stop(run)


@app.command(rich_help_panel=ON_A_RUN)
def checkpoint(run: Annotated[str, typer.Argument(metavar="[RUN]")] = "last") -> None:
    """Make a live run save a checkpoint now."""
    from gearshift.cli.control import checkpoint

    checkpoint(run)


@app.command(rich_help_panel=LAB)
def replay(
    log_or_run: Annotated[str, typer.Argument(metavar="[LOG|RUN]")] = "last",
    show: Annotated[bool, typer.Option("--show", help="Print the log in readable form first.")] = False,
) -> None:
    """Check that replaying a run's log reproduces its decisions."""
    from gearshift.cli.replay import replay

    raise typer.Exit(replay(log_or_run, show=show))


@app.command(rich_help_panel=LAB)
def prepare(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file.")],
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="The output folder.")],
    settings: Settings = None,
) -> None:
    """Convert a log once to Parquet with precomputed ids; it trains faster and can be read from any position."""
    from gearshift.cli.prepare import prepare

    prepare(config, output, settings or [])


@app.command(rich_help_panel=ON_A_RUN)
def delta(
    run: Annotated[str, typer.Argument(metavar="[RUN]")] = "last",
    since: Annotated[
        int | None, typer.Option(help="The step of the checkpoint that the receiver has.")
    ] = None,
    to: Annotated[
        int | None, typer.Option(help="The step of the newer checkpoint; the last one if not set.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; default: in the run's folder.")
    ] = None,
) -> None:
    """Write what changed since an earlier checkpoint: changed rows, erased ids, dense weights."""
    from gearshift.cli.delta import delta

    delta(run, since, to, out)


@app.command("apply-delta", rich_help_panel=ON_A_RUN)
def apply_delta(
    base: Annotated[str, typer.Argument(metavar="RUN[@CHECKPOINT]|CHECKPOINT")],
    deltas: Annotated[list[Path], typer.Argument(metavar="DELTA...")],
    out: Annotated[Path, typer.Option(help="The folder of the full checkpoint to write.")],
) -> None:
    """Reconstruct a full checkpoint from a base and one or more deltas."""
    from gearshift.cli.delta import apply_delta

    apply_delta(base, deltas, out)


@app.command(rich_help_panel=ON_A_RUN)
def rows(
    model: Annotated[str, typer.Argument(metavar="RUN|CHECKPOINT")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    precision: Annotated[
        str, typer.Option(help="How weights are stored: float32, bfloat16, or int8 with a scale per row.")
    ] = "float32",
    store: Annotated[
        int | None, typer.Option(metavar="N", help="Which store, if embeddings have several widths.")
    ] = None,
) -> None:
    """Write the embedding rows to one file that servers look up (gs.FrozenRows), without optimizer state."""
    from gearshift.cli.rows import rows

    rows(model, out, precision, store)


@app.command(rich_help_panel=LAB)
def inspect(
    what: Annotated[str, typer.Argument(metavar="RUN|CONFIG|CHECKPOINT|PREPARED")] = "last",
    settings: Settings = None,
    rows: Annotated[
        bool,
        typer.Option(
            "--rows", help="Count the rows of a run or checkpoint by feature, by occurrences and by age."
        ),
    ] = False,
    json: JsonFile = None,
) -> None:
    """Show the contents of a run, a config, a checkpoint or a prepared folder."""
    from gearshift.cli.inspect import inspect

    inspect(what, settings or [], rows=rows, json_file=json)


@app.command(rich_help_panel=EVERYDAY)
def compare(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file.")],
    settings: Settings = None,
    strategies: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Comma-separated; with settings: gba:max_lag=2; custom: module:Class. The first is the reference of "
            "the comparison.",
        ),
    ] = "sync,gba,async",
    seeds: Annotated[int, typer.Option(metavar="N", help="Paired runs per strategy.")] = 3,
    slow: Annotated[
        list[str] | None,
        typer.Option(metavar="WHO=FACTOR", help="Slow a worker down with injected delays: 3=5x."),
    ] = None,
    bursts: Annotated[
        list[str] | None,
        typer.Option(metavar="SHARE=FACTOR", help="10%=10x: slow down a tenth of the batches."),
    ] = None,
    step_seconds: Annotated[
        str, typer.Option(metavar="TIME", help="Duration of an undisturbed batch, if delays are injected.")
    ] = "200ms",
    margin: Annotated[
        float, typer.Option(metavar="AUC", help="Differences up to this count as the same.")
    ] = 0.001,
    price: Annotated[float | None, typer.Option(metavar="$", help="Price of one worker per hour.")] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Output folder for compare.json and compare.md.")
    ] = Path(),
) -> None:
    """Compare strategies over several seeds: AUC with a verdict, speed, staleness, discarded gradients."""
    from gearshift.cli.compare import CompareOptions, compare_command

    inject = []
    if slow or bursts:
        inject = [f"cluster.inject={{step: {step_seconds}, slow: {slow or []}, bursts: {bursts or []}}}"]
    compare_command(
        CompareOptions(config, settings or [], _listed(strategies), seeds, inject, margin, price, out)
    )


@app.command("sweep-batch", rich_help_panel=LAB)
def sweep_batch(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file.")],
    settings: Settings = None,
    optimizers: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Comma-separated, default: the config's; with keys of `optimizer`: vr_adam:row_trust=row_wise.",
        ),
    ] = "",
    batches: Annotated[
        str, typer.Option(metavar="FACTORS", help="Multiples of train.global_batch.")
    ] = "1x,2x,4x,8x,16x,32x,64x",
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Paired runs per line; only three if they are conclusive.")
    ] = 5,
    tolerance: Annotated[float, typer.Option(metavar="AUC", help="Acceptable loss of AUC.")] = 0.001,
    tune_share: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the training data used to search learning rates; default 0.1, or 1 with several epochs.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Output folder for sweep.json, .md and .svg.")
    ] = Path(),
) -> None:
    """Find the largest usable batch size: compare optimizers at growing batches and recommend one."""
    from gearshift.cli.sweep_batch import factor, parsed_share, sweep_batch_command
    from gearshift.experiments.batch_sweep import SweepRequest

    factors = tuple(factor(word) for word in _listed(batches))
    names = tuple(_listed(optimizers))
    share = None if tune_share is None else parsed_share("--tune-share", tune_share)
    request = SweepRequest(config, tuple(settings or ()), names, factors, seeds, tolerance, share)
    sweep_batch_command(request, out)


@app.command(rich_help_panel=LAB)
def simulate(
    workers: Annotated[str, typer.Option(metavar="N")] = "8",
    global_batch: Annotated[str, typer.Option(metavar="N", help="Examples per step.")] = "8192",
    strategies: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Comma-separated; with settings: gba:max_lag=2; custom: module:Class."
        ),
    ] = "sync,gba,async",
    switch: Annotated[
        list[str] | None, typer.Option(metavar="WHEN=NAME", help="50%=gba, 500k=gba or 60s=gba.")
    ] = None,
    examples: Annotated[str, typer.Option(metavar="N", help="Number of training examples.")] = "1M",
    batch: Annotated[
        str | None,
        typer.Option(metavar="N", help="Examples per gradient; default: global batch / workers."),
    ] = None,
    step_seconds: Annotated[
        str, typer.Option(metavar="TIME", help="Compute time of an undisturbed worker per batch.")
    ] = "0.1",
    slow: Annotated[
        list[str] | None,
        typer.Option(metavar="WHO=FACTOR", help="3=5x, 0-3=2x, or for a limited time: 3=5x@60s-120s."),
    ] = None,
    lognormal: Annotated[
        list[str] | None,
        typer.Option(metavar="SIGMA", help="Jitter of every batch: 0.3, or of one worker: 3:0.5."),
    ] = None,
    bursts: Annotated[
        list[str] | None, typer.Option(metavar="SHARE=FACTOR", help="10%=10x: a tenth of the batches.")
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="WHEN", help="3@60s+30s (back after 30 s), or 1h+30s: once per hour."),
    ] = None,
    preempt: Annotated[
        list[str] | None, typer.Option(metavar="WHO@FROM-TO", help="3@60s-120s: leaves and returns.")
    ] = None,
    notice: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time until a worker failure is detected.")
    ] = None,
    latency: Annotated[str | None, typer.Option(metavar="TIME", help="Latency of a pull or push.")] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bandwidth of each worker, per second.")
    ] = None,
    pull_bytes: Annotated[str | None, typer.Option(metavar="SIZE", help="Per batch.")] = None,
    push_bytes: Annotated[str | None, typer.Option(metavar="SIZE", help="Per batch.")] = None,
    all_reduce: Annotated[
        str | None, typer.Option(metavar="TIME", help="Duration of the all-reduce in a sync step.")
    ] = None,
    dense_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of the dense parameters, which are reduced, pulled and pushed, or exchanged.",
        ),
    ] = None,
    sync_servers: Annotated[
        str | None,
        typer.Option(metavar="N", help="Number of servers for the centre of replicas (easgd); default 1."),
    ] = None,
    sync_bandwidth: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bandwidth of each sync server, per second.")
    ] = None,
    cores: Annotated[
        str | None, typer.Option(metavar="N", help="Number of cores that all workers share.")
    ] = None,
    cpu_seconds: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The part of --step-seconds that needs a core; default: all."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N")] = 1,
    json: JsonFile = None,
) -> None:
    """Simulate strategies on a hypothetical cluster: speed, staleness, discarded data. Nothing is trained."""
    from gearshift.cli.simulate import simulate_command
    from gearshift.cli.simulate_options import SimulateOptions

    options = SimulateOptions(
        workers=workers,
        global_batch=global_batch,
        examples=examples,
        strategies=strategies,
        switches=switch or [],
        batch=batch,
        step_seconds=step_seconds,
        slow=slow or [],
        lognormal=lognormal or [],
        bursts=bursts or [],
        fail=fail or [],
        preempt=preempt or [],
        notice=notice,
        latency=latency,
        bandwidth=bandwidth,
        pull_bytes=pull_bytes,
        push_bytes=push_bytes,
        all_reduce=all_reduce,
        dense_bytes=dense_bytes,
        sync_servers=sync_servers,
        sync_bandwidth=sync_bandwidth,
        cores=cores,
        cpu_seconds=cpu_seconds,
        seed=seed,
    )
    simulate_command(options, json_file=json)


def _listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def main() -> None:
    """The entry point of the `gearshift` command."""
    startup_interrupts.install()
    warnings.showwarning = _show_warning
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    sys.exit(run([argument for argument in arguments if argument != "--debug"], debug=debug))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning about data as plain text; other warnings are for developers and show their location."""
    if issubclass(category, DataWarning):
        text = f"{message}\n"
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(text)


def _is_of_an_import(error: Exception) -> bool:
    """Whether a library was being imported. It may turn an interrupt into another error."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ImportError) or any(frame.name == "<module>" for frame in frames)


def run(arguments: list[str], *, debug: bool = False) -> int:
    """Run a command line; returns the exit code."""
    try:
        if arguments[:1] == ["--version"]:
            return _print_version()
        code = app(arguments or ["--help"], prog_name="gearshift", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _complain(_usage(error, arguments))
    except UserError as error:
        return _complain(str(error), error if debug else None)
    except BrokenPipeError:  # `gearshift runs | head`
        return _unread()
    except SystemExit as stop:  # raised by typer if a command was still writing
        if isinstance(stop.__context__, BrokenPipeError):
            return _unread()
        raise
    except OSError as error:  # a full disk, a missing folder, no permission
        return _complain(_machine(error), error if debug else None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return 130 if startup_interrupts.received() and _is_of_an_import(error) else _fault(error, debug)


def _unread() -> int:
    """The reader has closed our output: no message, and the exit code of a process killed by SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _complain(sentence: str, error: BaseException | None = None) -> int:
    if error is not None:
        traceback.print_exception(error)
    print(sentence, file=sys.stderr)
    return 2


def _machine(error: OSError) -> str:
    """The file and reason of a system error. Libraries wrap both in their own text."""
    if error.strerror is None or error.filename is None:
        return " ".join(str(error).split()) or type(error).__name__
    return f"cannot use {error.filename}: {error.strerror}; check that it exists, is writable, and the disk is not full"


def _fault(error: Exception, debug: bool) -> int:
    """Report an internal error."""
    if debug:
        traceback.print_exception(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    print(
        f"internal error: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno}). "
        "Run again with --debug for the traceback, and please report it.",
        file=sys.stderr,
    )
    return 1


def _usage(error: typer.TyperException, arguments: list[str]) -> str:
    commands = [
        command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands
    ]
    typed = arguments[0] if arguments else ""
    if typed and not typed.startswith("-") and typed not in commands:
        near = nearest_name(typed, commands)
        hint = f" Did you mean `{near}`?" if near else ""
        return f"no command `{typed}`.{hint} ({', '.join(commands)})"
    help_of = f"gearshift {typed} --help" if typed in commands else "gearshift --help"
    message = error.format_message().rstrip(".")
    if wrong := re.match(r"Invalid value for '(.+)': Input should be a valid (integer|number)", message):
        message = f"{wrong[1]}: expected a {'whole ' if wrong[2] == 'integer' else ''}number"
    return f"{message}. See {help_of}"


def _print_version() -> int:
    from gearshift.run.versions import versions

    print(versions())
    return 0
