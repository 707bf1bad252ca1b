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

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.codec import MAGNITUDE_MAX, Codec, Payload
from dilocoxd.compress.columns import ColumnInt, PartsCodec, spread_for
from dilocoxd.compress.transform import Transform
from dilocoxd.errors import ConfigError
from dilocoxd.wire.layout import Layout, Segment

ROWS_PER_PRODUCT = 64
"""Rows of a float64 product at a time: bounds the extra memory."""
COSINES_MAX = 0.5
"""Frobenius norm of the cosines between rows: below it the products of rows have condition 3 at most."""
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

    def codec(self, pass_index: int, segment: Segment) -> Codec:
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
                # A in its own order and Q turned: of the ways to write this product the fastest for all shapes tried.
                q_NR = self._warm_start(matrix).t().contiguous()
                out_RM.copy_(torch.mm(_view(d, matrix), q_NR).t())
            return vector
        p_hats = self._decoded(segment, results)
        for (matrix, out_RN), p_RM in zip(_columns(vector, plan, is_first=False), p_hats, strict=True):
            _fit(p_RM, torch.mm(p_RM, _view(d, matrix)), out_RN)
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
                p_RM.copy_(orthonormal(p_RM))

    def expand_vector(self, segment: Segment, vector: Tensor, results: Sequence[Payload], out: Tensor) -> None:
        plan = self.plan(segment)
        p_hats = self._decoded(segment, results)
        for (matrix, r_RN), p_RM in zip(_columns(vector, plan, is_first=False), p_hats, strict=True):
            exact_product(p_RM, r_RN, _view(out, matrix))
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
            gram = torch.mm(r_RN, r_RN.t())
            energies, rotation = torch.linalg.eigh(gram.double())
            self.singular_values[matrix.key] = energies.clamp_(min=0).sqrt_().flip(0)
            ordered = torch.mm(rotation.flip(1).t().float(), r_RN)
            self._warm[matrix.key] = straightened(ordered)

    def _decoded(self, segment: Segment, results: Sequence[Payload]) -> list[Tensor]:
        vector = torch.empty(self.vector_numel(0, segment))
        self.codec(0, segment).decode(results[0], vector)
        return [p_RM for _, p_RM in _columns(vector, self.plan(segment), is_first=True)]

    def _warm_start(self, matrix: Matrix) -> Tensor:
        """Orthonormal rows [R, N]; Gaussian ones where nothing was committed yet or the low rank has grown."""
        known = self._warm.get(matrix.key)
        if known is not None and known.shape[0] >= matrix.lowrank_r:
            return known[: matrix.lowrank_r]
        generator = torch.Generator().manual_seed(zlib.crc32(matrix.key.encode()) + self._seed)
        fresh = torch.randn(matrix.lowrank_r, matrix.columns, generator=generator)
        if known is not None:
            fresh[: known.shape[0]].copy_(known)
        self._warm[matrix.key] = orthonormal(fresh)
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
    """`orthonormal` (but for signs) of rows that are nearly orthogonal, of any lengths: a third of the time.

    Cholesky's factor of their products takes out what is left between them; it is only as good as these are small, so
    others take the long way.
    """
    gram = torch.mm(rows_RN, rows_RN.t()).double()
    inverse_lengths = gram.diagonal().rsqrt()
    cosines = gram * inverse_lengths * inverse_lengths.unsqueeze(1)
    identity = torch.eye(len(gram), dtype=torch.float64)
    if not float((cosines - identity).norm()) <= COSINES_MAX:  # so is NaN, of rows that are zero
        return orthonormal(rows_RN)
    factor = torch.linalg.cholesky(cosines)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    return torch.mm(inverse.mul_(inverse_lengths).float(), rows_RN)


def exact_product(p_RM: Tensor, r_RN: Tensor, out_MN: Tensor) -> None:
    """out <- P R^T rounded once to fp32. Decoded factors make every float64 sum exact, whatever its order."""
    p_wide, r_wide = p_RM.double(), r_RN.double()
    is_bounded = float(p_RM.abs().amax()) * float(r_RN.abs().amax()) * p_RM.shape[0] <= MAGNITUDE_MAX
    room = torch.empty(min(ROWS_PER_PRODUCT, out_MN.shape[0]), out_MN.shape[1], dtype=torch.float64)
    for row in range(0, out_MN.shape[0], ROWS_PER_PRODUCT):
        out = out_MN[row : row + ROWS_PER_PRODUCT]
        block = room[: out.shape[0]]
        torch.mm(p_wide[:, row : row + ROWS_PER_PRODUCT].t(), r_wide, out=block)
        if not is_bounded:
            block.clamp_(-MAGNITUDE_MAX, MAGNITUDE_MAX)
        if loops.found:
            loops.found.narrow(block, out)
        else:
            out.copy_(block)


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


def _fit(p_RM: Tensor, projected_RN: Tensor, out_RN: Tensor) -> None:
    """out <- (P^T P)^-1 P^T A for the quantised, so nearly orthonormal, P; plain projection if P is degenerate."""
    gram = torch.mm(p_RM, p_RM.t()).double()
    gram.diagonal().add_(float(gram.diagonal().mean()) * RIDGE)
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info) or float(factor.diagonal().amin()) == 0:
        out_RN.copy_(projected_RN)
    else:
        torch.mm(torch.cholesky_inverse(factor).float(), projected_RN, out=out_RN)


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
