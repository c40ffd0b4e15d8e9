"""Where a process may listen: in a folder that only its user can enter, or on a port of a named address."""

from __future__ import annotations

import ipaddress
import os
import stat
from pathlib import Path

from gearshift.engine.protocol.messages import To
from gearshift.errors import UserError

LONGEST = 107  # maximum length of a socket's path on Linux


def ipc_address(folder: Path, me: To, boot: int) -> str:
    """An address in this folder, which is created if needed; other users cannot enter it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return f"ipc://{folder}/{me.role}-{me.number}-{boot}"


def check_bind(address: str, *, keys: bool, open_to_host: bool = False) -> None:
    scheme, _, place = address.partition("://")
    if scheme == "ipc":
        _check_folder(Path(place))
    elif scheme == "tcp":
        _check_host(place.rpartition(":")[0], address, keys, open_to_host)
    else:
        raise UserError(f"{address}: an address to listen on begins with ipc:// or tcp://")


def _check_folder(path: Path) -> None:
    if len(os.fsencode(path)) > LONGEST:
        raise UserError(f"{path}: a socket's path has at most {LONGEST} bytes; choose a shorter folder")
    status = path.parent.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
        raise UserError(f"other users can enter {path.parent}; use a folder of your own with `chmod 700`")


def _check_host(host: str, address: str, keys: bool, open_to_host: bool) -> None:
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise UserError(
            f"{address}: name the IP address to listen on, for example tcp://127.0.0.1:*"
        ) from None
    if ip.is_unspecified:
        raise UserError(f"{address} would listen on all networks of this host; name one address")
    if not keys and not (ip.is_loopback and open_to_host):
        raise UserError(f"{address}: a port is opened with keys only; inside a host use ipc://")
