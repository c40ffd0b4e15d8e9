"""Lines per file and package, for `make check`: what grows is seen. Warns above 400 lines, never fails."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
WARN = 400
PATTERNS = ("src/**/*.py", "csrc/*.h", "csrc/*.cpp", "tests/**/*.py", "benchmarks/**/*.py")


def sizes() -> dict[Path, int]:
    files = (file for pattern in PATTERNS for file in sorted(ROOT.glob(pattern)))
    return {file.relative_to(ROOT): len(file.read_text().splitlines()) for file in files}


def main() -> None:
    found = sizes()
    packages: dict[Path, list[tuple[str, int]]] = defaultdict(list)
    for file, lines in found.items():
        packages[file.parent].append((file.name, lines))
    for package, files in sorted(packages.items()):
        print(f"{sum(lines for _, lines in files):6,}  {package}/  ({len(files)} files)")
        if package.parts[0] in ("src", "csrc"):
            for name, lines in sorted(files, key=lambda file: -file[1]):
                print(f"{lines:12,}  {name}{'   <- long' if lines > WARN else ''}")
    long = [str(file) for file, lines in found.items() if lines > WARN]
    total = sum(lines for file, lines in found.items() if file.parts[0] in ("src", "csrc"))
    print(f"{total:6,}  lines in src and csrc")
    if long:
        print(f"warning: over {WARN} lines: {', '.join(long)}")


if __name__ == "__main__":
    main()
