"""The schemas of public click logs with fixed columns."""

from __future__ import annotations

from collections.abc import Mapping

from gearshift.data.schema import Categorical, Label, Numeric, Schema

AVAZU_FIELDS = (
    *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *("C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"),
)


def criteo_schema() -> Schema:
    """13 counts (log1p) and 26 categories; there is no time."""
    numeric = tuple(Numeric(f"I{i}", "log1p") for i in range(1, 14))
    return Schema(numeric + tuple(Categorical(f"C{i}") for i in range(1, 27)), (Label("label"),))


def avazu_schema() -> Schema:
    """All columns except the id of the example are categories; `hour` is the time and not a feature."""
    return Schema(tuple(Categorical(name) for name in AVAZU_FIELDS), (Label("click"),), time="hour")


KNOWN_LOGS: Mapping[str, Schema] = {"criteo": criteo_schema(), "avazu": avazu_schema()}
