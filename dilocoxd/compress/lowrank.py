"""Low-rank factors with a shared warm start, in two passes: P for the subspace, then R and everything dense.

Per matrix piece A [M, N] of a segment (its whole rows; cut rows, vectors and small matrices travel dense):
    pass 0   P_i = A_i Q        owner: P = mean P_i (+ residual Q), columns orthonormalised, quantised -> P^
    pass 1   R_i = A_i^T P^ (P^^T P^)^-1        owner: R = mean R_i (+ residual), quantised
    Delta = P^ R^T              own contribution = P^ Rq_i^T;  next warm start: Q = orthonormal columns of R
R_i is the least-squares fit of A_i in the span of P^, so quantising P^ only tilts the subspace and costs no accuracy
inside it. Q is orthonormal before every use, ordered by energy, and blocks of scales never mix columns: without either
the error doubles (measured, ALGORITHMS 7). Q need not agree bit for bit between sites: P^ comes from the owner, Delta
is an exact product (compress/columns.py). A site that has just joined starts from Gaussian columns for one round; its
feedback takes what that costs. Sources: PowerSGD arXiv 1905.13727; ALGORITHMS 1.2, 8.

Shape legend: M rows and N columns of one matrix piece; R = low rank r of that piece.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dilocoxd.compress.codec import Codec, Payload, as_bytes
from dilocoxd.compress.columns import ColumnInt, PartsCodec, Single, exact_in_single, exact_product, spread_for
from dilocoxd.compress.transform import Transform
from dilocoxd.errors import ConfigError
from dilocoxd.wire.layout import Layout, Segment

ROWS_PER_SUM = 128
"""Rows of A at a time in P^T A: their pages stay known to the processor; a fifth less time from r = 64 on."""
WORTH_A_LOOK = 1 << 23
"""Multiplications of a product: about as long as a dozen calls on short tensors."""
GROWTH_MAX = 16.0
"""Of rounding errors when rows are made orthonormal by their products: below it they stay under 1e-5 or so."""
LARGE = 40
"""2**-LARGE makes the square of every decoded number one of fp32."""
LENGTH_MIN = 2.0**-48
"""Of rows whose products are taken: squares of shorter ones get lost among the smallest numbers."""
RIDGE = 1e-6
"""Of the mean diagonal of P^^T P^: keeps the fit defined when quantisation zeroed a column."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A piece of a parameter that is sent as factors: elements [start, start + rows * columns) of its segment."""

    key: str
    start: int
    rows: int
    columns: int
    lowrank_r: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def is_worth_a_look(self) -> bool:
        """Whether a product in float64 takes longer than finding out where it may be one in fp32."""
        return self.rows * self.columns * self.lowrank_r >= WORTH_A_LOOK


@dataclass(frozen=True, slots=True)
class LowRankPlan:
    """What of one segment is factored and what is dense, both ascending."""

    matrices: tuple[Matrix, ...]
    dense: tuple[tuple[int, int], ...]

    @property
    def dense_numel(self) -> int:
        return sum(stop - start for start, stop in self.dense)


class LowRank(Transform):
    """`lowrank_r` may be changed between rounds (`set_lowrank_r`) up to the one given here."""

    num_passes = 2
    has_memory = True

    def __init__(
        self, layout: Layout, lowrank_r: int, dense: Codec, bits: Literal[4, 8] = 4, block: int = 128, seed: int = 0
    ) -> None:
        super().__init__(layout)
        if lowrank_r < 1:
            raise ConfigError(f"lowrank_r is {lowrank_r}; use at least 1, or a transform without low rank")
        self.lowrank_r_max = self.lowrank_r = lowrank_r
        self._dense = dense
        self._bits: Literal[4, 8] = bits
        self._block = block
        self._seed = seed
        self._plans = {segment.index: self._plan(segment) for segment in layout.segments}
        self._warm: dict[str, Tensor] = {}
        self.singular_values: dict[str, Tensor] = {}
        """Per matrix: singular values of the last committed Delta, descending."""
        self.rank_eps: float | None = None
        """Not None: `recall` also measures `ranks`."""
        self.ranks: dict[str, int] = {}
        """Per matrix: effective rank of the last committed Delta, the same on every machine (adaptive schedule)."""

    def set_lowrank_r(self, lowrank_r: int) -> None:
        """Use this low rank from the next round on; between 1 and `lowrank_r_max`. The same at all peers."""
        if not 1 <= lowrank_r <= self.lowrank_r_max:
            raise ValueError(f"lowrank_r {lowrank_r} is not within 1..{self.lowrank_r_max}")
        self.lowrank_r = lowrank_r
        self._plans = {segment.index: self._plan(segment) for segment in self.layout.segments}

    def plan(self, segment: Segment) -> LowRankPlan:
        return self._plans[segment.index]

    def codec(self, pass_index: int, segment: Segment) -> PartsCodec:
        plan = self.plan(segment)
        parts: list[tuple[Codec, int]] = []
        for matrix in plan.matrices:
            length = matrix.columns if pass_index else matrix.rows
            spread = spread_for(self._bits, matrix.lowrank_r)
            parts.append((ColumnInt(self._bits, self._block, length, spread), matrix.lowrank_r * length))
        if pass_index:
            parts.append((self._dense, plan.dense_numel))
        return PartsCodec(parts)

    def vector_numel(self, pass_index: int, segment: Segment) -> int:
        plan = self.plan(segment)
        if pass_index:
            return sum(m.lowrank_r * m.columns for m in plan.matrices) + plan.dense_numel
        return sum(m.lowrank_r * m.rows for m in plan.matrices)

    def project(self, pass_index: int, segment: Segment, d: Tensor, results: Sequence[Payload]) -> Tensor:
        plan = self.plan(segment)
        vector = torch.empty(self.vector_numel(pass_index, segment))
        if pass_index == 0:
            for matrix, out_RM in _columns(vector, plan, is_first=True):
                # A in its own order, Q by rows: of the ways to write this product the fastest for all shapes tried.
                out_RM.copy_(torch.mm(_view(d, matrix), self._warm_start(matrix)).t())
            return vector
        p_hats = self._decoded(segment, results)
        for (matrix, out_RN), p_RM in zip(_columns(vector, plan, is_first=False), p_hats, strict=True):
            _fit(p_RM, _view(d, matrix), out_RN)
        first = vector.numel() - plan.dense_numel
        for start, stop in plan.dense:
            vector[first : first + stop - start].copy_(d[start:stop])
            first += stop - start
        return vector

    def finish_mean_(
        self, pass_index: int, segment: Segment, mean: Tensor, residual: Tensor | None, results: Sequence[Payload]
    ) -> None:
        super().finish_mean_(pass_index, segment, mean, residual, results)
        if pass_index == 0:
            for _, p_RM in _columns(mean, self.plan(segment), is_first=True):
                p_RM.copy_(straightened(p_RM))

    def expand(self, segment: Segment, last: Payload, results: Sequence[Payload], out: Tensor) -> None:
        vector = torch.empty(self.vector_numel(1, segment))
        codec = self.codec(1, segment)
        codec.decode(last, vector)
        p_hats = self._decoded(segment, results)
        pairs = zip(self._scales(self.codec(0, segment), results[0]), self._scales(codec, last), strict=True)
        single = [
            Single(exact_in_single(*pair, self._bits), self._block) if matrix.is_worth_a_look else None
            for matrix, pair in zip(self.plan(segment).matrices, pairs, strict=True)
        ]
        self._expand(segment, vector, p_hats, single, out)

    def expand_vector(self, segment: Segment, vector: Tensor, results: Sequence[Payload], out: Tensor) -> None:
        p_hats = self._decoded(segment, results)
        self._expand(segment, vector, p_hats, [None] * len(p_hats), out)

    def _expand(
        self, segment: Segment, vector: Tensor, p_hats: list[Tensor], single: Sequence[Single | None], out: Tensor
    ) -> None:
        plan = self.plan(segment)
        columns = _columns(vector, plan, is_first=False)
        for (matrix, r_RN), p_RM, where in zip(columns, p_hats, single, strict=True):
            exact_product(p_RM, r_RN, _view(out, matrix), where)
        first = vector.numel() - plan.dense_numel
        for start, stop in plan.dense:
            out[start:stop].copy_(vector[first : first + stop - start])
            first += stop - start

    def tune(self, round_index: int, lowrank_r: int) -> None:
        if lowrank_r != self.lowrank_r:
            self.set_lowrank_r(lowrank_r)

    def recall(self, segment: Segment, last: Payload) -> None:
        plan = self.plan(segment)
        vector = torch.empty(self.vector_numel(1, segment))
        self.codec(1, segment).decode(last, vector)
        for matrix, r_RN in _columns(vector, plan, is_first=False):
            if self.rank_eps is not None:
                self.ranks[matrix.key] = pivoted_rank(r_RN, self.rank_eps)
            self.singular_values[matrix.key], self._warm[matrix.key] = principal(r_RN)

    def _scales(self, codec: PartsCodec, payload: Payload) -> Iterator[Tensor]:
        """Of each matrix the scales of its factor, int16[R, blocks], of a payload that has been decoded."""
        for part, numel, raw in codec.parts_of(as_bytes(payload)):
            if isinstance(part, ColumnInt):
                yield part.scales_of(raw, numel)

    def _decoded(self, segment: Segment, results: Sequence[Payload]) -> list[Tensor]:
        vector = torch.empty(self.vector_numel(0, segment))
        self.codec(0, segment).decode(results[0], vector)
        return [p_RM for _, p_RM in _columns(vector, self.plan(segment), is_first=True)]

    def _warm_start(self, matrix: Matrix) -> Tensor:
        """Orthonormal columns [N, R]; Gaussian ones where nothing was committed yet or the low rank has grown."""
        known = self._warm.get(matrix.key)
        if known is not None and known.shape[1] >= matrix.lowrank_r:
            return known[:, : matrix.lowrank_r]
        generator = torch.Generator().manual_seed(zlib.crc32(matrix.key.encode()) + self._seed)
        fresh = torch.randn(matrix.lowrank_r, matrix.columns, generator=generator)
        if known is not None:
            fresh[: known.shape[1]].copy_(known.t())
        self._warm[matrix.key] = orthonormal(fresh).t().contiguous()
        return self._warm[matrix.key]

    def _plan(self, segment: Segment) -> LowRankPlan:
        matrices: list[Matrix] = []
        dense: list[tuple[int, int]] = []
        position = 0
        for piece in self.layout.pieces(segment):
            whole = self.layout.span(piece.name)
            shape = self.layout.shape(piece.name)
            columns = whole.numel // shape[0] if len(shape) > 1 else 1
            first_row = -(-(piece.start - whole.start) // columns)
            rows = max(0, (piece.stop - whole.start) // columns - first_row)
            r = self.lowrank_r
            if r * (rows + columns) < rows * columns:
                start = whole.start + first_row * columns - segment.start
                matrix = Matrix(f"{piece.name}@{first_row}", start, rows, columns, r)
                matrices.append(matrix)
                _add_dense(dense, position, start)
                position = matrix.stop
        _add_dense(dense, position, segment.numel)
        return LowRankPlan(tuple(matrices), tuple(dense))


def orthonormal(rows_RN: Tensor) -> Tensor:
    """Orthonormal rows that span the rows given, in their order; [R, N] float32 with R <= N."""
    basis: Tensor = torch.linalg.qr(rows_RN.t()).Q
    return basis.t().contiguous()


def straightened(rows_RN: Tensor) -> Tensor:
    """`orthonormal` (but for signs) of rows that are far from dependent, of any lengths: a quarter of the time.

    Cholesky's factor of their products takes out what one has of those before it. That is as good as the errors of
    these products are small after it, so other rows take the long way.
    """
    gram = torch.mm(rows_RN, rows_RN.t()).double()
    lengths = gram.diagonal().sqrt()
    factor, _ = torch.linalg.cholesky_ex(gram / lengths / lengths.unsqueeze(1))
    identity = torch.eye(len(gram), dtype=torch.float64)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    if not is_tame(inverse, lengths):
        return orthonormal(rows_RN)
    return torch.mm((inverse / lengths).float(), rows_RN)


def principal(r_RN: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values of R, float64[R] descending, and the next warm start, as orthonormal columns [N, R]."""
    gram = torch.mm(r_RN, r_RN.t()).double()
    if float(gram.diagonal().sum()) == math.inf:  # numbers near 2**64, as a peer may send them
        sizes, warm = principal(r_RN * 2.0**-LARGE)
        return sizes * 2.0**LARGE, warm
    energies, rotation = torch.linalg.eigh(gram)
    sizes, turn = energies.clamp_(min=0).sqrt_().flip(0), rotation.flip(1).t()
    lengths = gram.diagonal().sqrt()
    shares = turn / sizes.unsqueeze(1)
    if is_tame(shares * lengths, lengths):
        return sizes, torch.mm(r_RN.t(), shares.float().t())
    return sizes, straightened(torch.mm(turn.float(), r_RN)).t().contiguous()


def is_tame(shares_RR: Tensor, lengths: Tensor) -> bool:
    """Whether rows of these lengths, divided by them and mixed by `shares`, become orthonormal up to a few roundings.

    What is between two rows, and their products, is known to 2**-24 of their lengths; shares multiply that by their
    own lengths. Rows without a length, of which nothing is a number, are none.
    """
    return float(shares_RR.norm(dim=1).amax()) <= GROWTH_MAX and float(lengths.amin()) >= LENGTH_MIN


def pivoted_rank(r_RN: Tensor, eps: float) -> int:
    """How many pivots of R R^T hold 1 - eps of its trace: the effective rank of Delta = P R^T with P orthonormal.

    Rounded the same way on every machine: products of R columns at a time are exact in float64 (compress/columns.py),
    everything else is one IEEE operation after the other. At least the rank that singular values would give.
    """
    low_rank, num_columns = r_RN.shape
    wide = r_RN.double()
    rest = torch.zeros(low_rank, low_rank, dtype=torch.float64)
    for start in range(0, num_columns, low_rank):
        block = wide[:, start : start + low_rank]
        rest.add_(torch.mm(block, block.t()))
    energies = [max(0.0, float(value)) for value in rest.diagonal()]
    allowed = eps * sum(energies)
    for count in range(low_rank):
        if sum(energies) <= allowed:
            return count
        pivot = energies.index(max(energies))
        column = rest[:, pivot].clone()
        rest.sub_((column.unsqueeze(1) * column.unsqueeze(0)).div_(energies[pivot]))
        energies = [max(0.0, float(value)) for value in rest.diagonal()]
        energies[pivot] = 0.0
    return low_rank


def _fit(p_RM: Tensor, a_MN: Tensor, out_RN: Tensor) -> None:
    """out <- (P^T P)^-1 P^T A for the quantised, so nearly orthonormal, P; plain projection if P is degenerate."""
    gram = torch.mm(p_RM, p_RM.t()).double()
    if float(gram.diagonal().sum()) == math.inf:  # numbers near 2**64, as an owner may send them
        _fit(p_RM * 2.0**-LARGE, a_MN, out_RN)
        out_RN.mul_(2.0**-LARGE)
        return
    gram.diagonal().add_(float(gram.diagonal().mean()) * RIDGE)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info) or float(factor.diagonal().amin()) == 0:
        _multiply(p_RM, a_MN, out_RN)
        return
    inverse = torch.cholesky_inverse(factor).float()
    if a_MN.shape[0] < a_MN.shape[1]:
        _multiply(torch.mm(inverse, p_RM), a_MN, out_RN)
    else:
        projected = torch.empty_like(out_RN)
        _multiply(p_RM, a_MN, projected)
        torch.mm(inverse, projected, out=out_RN)


def _multiply(p_RM: Tensor, a_MN: Tensor, out_RN: Tensor) -> None:
    """out <- P^T A, some rows of A at a time."""
    torch.mm(p_RM[:, :ROWS_PER_SUM], a_MN[:ROWS_PER_SUM], out=out_RN)
    for row in range(ROWS_PER_SUM, a_MN.shape[0], ROWS_PER_SUM):
        out_RN.addmm_(p_RM[:, row : row + ROWS_PER_SUM], a_MN[row : row + ROWS_PER_SUM])


def _columns(vector: Tensor, plan: LowRankPlan, *, is_first: bool) -> Iterator[tuple[Matrix, Tensor]]:
    first = 0
    for matrix in plan.matrices:
        length = matrix.rows if is_first else matrix.columns
        last = first + matrix.lowrank_r * length
        yield matrix, vector[first:last].view(matrix.lowrank_r, length)
        first = last


def _view(values: Tensor, matrix: Matrix) -> Tensor:
    return values[matrix.start : matrix.stop].view(matrix.rows, matrix.columns)


def _add_dense(dense: list[tuple[int, int]], start: int, stop: int) -> None:
    if stop > start:
        dense.append((start, stop))
