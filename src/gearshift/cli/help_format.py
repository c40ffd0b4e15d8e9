"""The command list of `gearshift --help`. It is plain text, because importing a box renderer is slow."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class Sections(TyperGroup):
    """Lists the commands under their headings, in the order below."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            line = (name.ljust(width), command.get_short_help_str(200))
            panels.setdefault(getattr(command, "rich_help_panel", "Commands"), []).append(line)
        for panel, lines in panels.items():
            with formatter.section(panel):
                formatter.write_dl(lines)
