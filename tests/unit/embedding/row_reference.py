"""What a row store must do, in plain Python: a dict of rows, and each optimizer as in its paper, in float32.

Every operation is rounded as IEEE says and in the core's order, so the core must agree bit for bit.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from gearshift.embedding.store import (
    RowAdagrad,
    RowAdam,
    RowFTRL,
    RowMomentum,
    RowPart,
    RowSGD,
    RowwiseAdagrad,
)

f32 = np.float32
MASK = 2**64 - 1


def mix(x: int) -> int:
    """MurmurHash3's 64-bit finalizer."""
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & MASK
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33


def birth_value(seed: int, row_id: int, column: int, init: float) -> np.float32:
    row_hash = mix(mix(seed + 0x632BE59BD9B4E019 & MASK) ^ row_id)
    bits = mix(row_hash + (column + 1) * 0x9E3779B97F4A7C15 & MASK) >> 41
    return f32(2 * bits + 1 - 2**23) * (f32(init) / f32(2**23))


@dataclass
class Row:
    weights: list[np.ndarray]  # per part
    state: list[np.ndarray]
    touches: int = 0
    last_step: int = 0
    updates: int = 0


def state_width(part: RowPart) -> int:
    match part.optimizer:
        case RowSGD():
            return 0
        case RowwiseAdagrad():
            return 1
        case RowAdam() | RowFTRL():
            return 2 * part.width
        case _:
            return part.width


def sum_square(g: np.ndarray) -> np.float32:
    """Eight running sums (column modulo 8), then pairwise."""
    lane = np.zeros(8, f32)
    for c, x in enumerate(g):
        lane[c % 8] += x * x
    pairs = lane[0::2] + lane[1::2]
    return (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])


def mean_square(g: np.ndarray) -> np.float32:
    return sum_square(g) / f32(len(g))


def clipped(part: RowPart, w: np.ndarray, sums: np.ndarray, scale: np.float32, count: int) -> np.float32:
    """The scale of a row's sums: CowClip's where they are longer than it allows."""
    if part.clip is None:
        return scale
    shortest = f32(part.clip.ratio * np.sqrt(part.width) * part.clip.zeta)
    longest = f32(part.clip.ratio) * f32(count) * max(np.sqrt(sum_square(w)), shortest)
    length = np.sqrt(sum_square(sums * scale))
    return scale * (longest / length) if longest < length else scale


def move(part: RowPart, w: np.ndarray, s: np.ndarray, g: np.ndarray, t: int, lr_scale: float) -> None:
    """One step of one part of a row, in place; t counts from 1."""
    o = part.optimizer
    lr = f32(o.lr if isinstance(o, RowFTRL) and lr_scale > 0 else o.lr * lr_scale)
    n = part.width
    if not isinstance(o, RowFTRL):
        g = g + f32(o.l2) * w
    match o:
        case RowSGD():
            w -= lr * g
        case RowMomentum():
            s[:] = f32(o.momentum) * s + g
            w -= lr * s
        case RowAdagrad():
            s += g * g
            w -= lr * g / (np.sqrt(s) + f32(o.eps))
        case RowwiseAdagrad():
            s += mean_square(g)
            w -= (lr / (np.sqrt(s) + f32(o.eps))) * g
        case RowAdam():
            m, v = s[:n], s[n:]
            m[:] = f32(o.beta1) * m + f32(1 - o.beta1) * g
            v[:] = f32(o.beta2) * v + f32(1 - o.beta2) * (g * g)
            first, second = f32(1 / (1 - o.beta1**t)), f32(1 / np.sqrt(1 - o.beta2**t))
            w -= lr * first * m / (np.sqrt(v) * second + f32(o.eps))
        case RowFTRL() if lr > 0:
            z, squares = s[:n], s[n:]
            more = squares + g * g
            z += g - (np.sqrt(more) - np.sqrt(squares)) / lr * w
            squares[:] = more
            past = np.abs(z) - f32(o.l1)
            size = past / ((f32(o.beta) + np.sqrt(more)) / lr + f32(o.l2))
            w[:] = np.where(past <= 0, f32(0), -np.sign(z) * size)


class ReferenceStore:
    def __init__(self, parts: list[RowPart], seed: int) -> None:
        self.parts, self.seed = parts, seed
        self.rows: dict[int, Row] = {}

    def born(self, row_id: int) -> Row:
        weights, state, column = [], [], 0
        for part in self.parts:
            o = part.optimizer
            init = 0.0 if isinstance(o, RowFTRL) else part.init
            values = [birth_value(self.seed, row_id, column + c, init) for c in range(part.width)]
            weights.append(np.abs(values).astype(f32) if init == 0 else np.array(values, f32))
            state.append(np.full(state_width(part), getattr(o, "initial", 0.0), f32))
            column += part.width
        return Row(weights, state)

    def peek(self, ids: list[int]) -> np.ndarray:
        rows = [np.concatenate((self.rows.get(i) or self.born(i)).weights) for i in ids]
        return np.array(rows, f32).reshape(len(ids), sum(p.width for p in self.parts))

    def pull(self, ids: list[int]) -> np.ndarray:
        for i in ids:
            if i not in self.rows:
                self.rows[i] = self.born(i)
        return self.peek(ids)

    def push(self, ids, sums, counts, *, examples: float, step: int, lr_scale: float = 1.0) -> None:
        self.pull(ids)
        for i, total, count in zip(ids, sums, counts, strict=True):
            row = self.rows[i]
            row.touches, row.last_step, row.updates = row.touches + int(count), step, row.updates + 1
            column = 0
            for part, w, s in zip(self.parts, row.weights, row.state, strict=True):
                sums_here = total[column : column + part.width]
                grad = sums_here * clipped(part, w, sums_here, f32(1 / examples), int(count))
                move(part, w, s, grad, row.updates, lr_scale)
                column += part.width

    def erase(self, ids: list[int]) -> int:
        return sum(self.rows.pop(i, None) is not None for i in ids)

    def copy(self) -> ReferenceStore:
        return deepcopy(self)


def rows_of(blocks) -> dict[int, tuple]:
    """All rows of a store's blocks (or of a cut), by id."""
    rows: dict[int, tuple] = {}
    for b in blocks:
        assert np.all(np.diff(b.ids_U) > 0), "a block is sorted by id"
        for k, i in enumerate(b.ids_U.tolist()):
            assert i not in rows, f"id {i} came twice"
            counts = int(b.touches_U[k]), int(b.last_step_U[k]), int(b.updates_U[k])
            rows[i] = (b.weights_UW[k].tolist(), b.state_US[k].tolist(), *counts)
    return rows


def reference_rows(reference: ReferenceStore) -> dict[int, tuple]:
    return {
        i: (
            np.concatenate(r.weights).tolist(),
            np.concatenate(r.state).tolist(),
            r.touches,
            r.last_step,
            r.updates,
        )
        for i, r in reference.rows.items()
    }
