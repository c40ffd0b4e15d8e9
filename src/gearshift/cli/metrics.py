"""`gearshift metrics`: metrics of a live run as Prometheus text, printed once or served on a local port."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gearshift.cli import terminal
from gearshift.cli.control import run_of
from gearshift.errors import UserError
from gearshift.run import control_socket, prometheus
from gearshift.run import folder as run_folder
from gearshift.run.health_check import check_health
from gearshift.run.polling import seen
from gearshift.run.state import Watcher

HOST = "127.0.0.1"
TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics(run: str, port: int | None) -> None:
    folder = run_of(run)
    if port is None:
        sys.stdout.write(page(folder))
        return
    with server(folder, port) as listening:
        control_socket.check_live(folder, "metrics")
        terminal.say(
            f"{folder.name} -> http://{HOST}:{listening.server_port}/metrics   (Ctrl-C ends this, not the run)"
        )
        try:
            listening.serve_forever()
        except KeyboardInterrupt:
            return


def page(folder: Path) -> str:
    answer = control_socket.ask(folder, "metrics")
    figures = prometheus.text(folder.name, control_socket.status_of(answer["status"]), answer["processes"])
    return figures + prometheus.state_text(folder.name, run_folder.read(folder).state)


def page_or_state(folder: Path, watchers: dict[Path, Watcher] | None = None) -> str:
    """For repeated requests: a run that is recovering or has ended has a state but no metrics."""
    try:
        return page(folder)
    except UserError:
        (record,) = seen([run_folder.read(folder)], watchers=watchers)
        return prometheus.state_text(folder.name, record.state)


def probe(folder: Path, watchers: dict[Path, Watcher] | None = None) -> tuple[int, str]:
    """Like /healthz of a service: 200 while the run is healthy or done, otherwise 503, with a reason."""
    report = check_health(folder, watchers=watchers)
    return 200 if report.health == "healthy" else 503, f"{report.health} {report.why}".rstrip() + "\n"


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    watchers: dict[Path, Watcher] = {}  # the last known facts about the run, kept between requests

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds for a request

        def do_GET(self) -> None:
            try:
                if self.path == "/healthz":
                    self._answer(*probe(folder, watchers))
                elif self.path in ("/", "/metrics"):
                    self._answer(200, page_or_state(folder, watchers))
                else:
                    self._answer(404, "not found; use /metrics or /healthz\n")
            except (UserError, OSError) as error:  # for example, the run's folder is gone
                self._answer(503, f"{error}\n")

        def _answer(self, code: int, body: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UserError(
            f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port, or 0 for any"
        ) from None
