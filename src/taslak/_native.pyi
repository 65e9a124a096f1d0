"""The compiled kernels. Addresses are `Tensor.data_ptr()`; 0 = not given. `taslak.native` is the front."""

from collections.abc import Sequence

class PackedMatrix:
    def __init__(self, kind: str, n: int, k: int, data: int) -> None: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def granule(self) -> int: ...

def threads() -> int: ...
def set_threads(threads: int) -> None: ...
def available_cores() -> int: ...
def paths() -> list[str]: ...
def path() -> str: ...
def kinds() -> list[str]: ...
def use(path: str) -> None: ...
def pack_bfloat16(packed: PackedMatrix, weights: int) -> None: ...
def pack_codes(packed: PackedMatrix, codes: int, scales: int, minima: int) -> None: ...
def pack_factors(packed: PackedMatrix, codes: int, d: int, dmin: int, a: int, b: int) -> None: ...
def unpack(packed: PackedMatrix, out: int) -> None: ...
def unpack_rows(packed: PackedMatrix, ids: int, count: int, out: int) -> None: ...
def linear(
    x: int, rows: int, ldx: int, packed: PackedMatrix, bias: int, residual: int, y: int, ldy: int
) -> None: ...
def linear_many(
    x: int, rows: int, ldx: int, weights: Sequence[PackedMatrix], biases: Sequence[int], ys: Sequence[int]
) -> None: ...
def gated(
    x: int, rows: int, ldx: int, gate: PackedMatrix, gate_bias: int, up: PackedMatrix, up_bias: int, y: int
) -> None: ...
def quantise(x: int, rows: int, k: int, codes: int, scales: int) -> None: ...
def read_all(data: int, bytes: int) -> int: ...
def run_counted(tasks: int, times: int) -> list[int]: ...

class Plan:
    def __init__(
        self, shares: Sequence[tuple[Sequence[int], int, Sequence[int], Sequence[int], int]]
    ) -> None: ...  # (pages, committed length, parents, nodes, base)
    @property
    def rows(self) -> int: ...
    @property
    def positions(self) -> int: ...

class Shape:
    def __init__(
        self,
        hidden: int,
        inner: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        rotary: int,
        eps: float,
        activation: str,
        parallel: bool,
        whole_qk_norm: bool,
        attention_scale: float,
        attention_cap: float,
        residual_scale: float,
    ) -> None: ...

class Ends:
    def __init__(
        self,
        embedding: PackedMatrix | None,
        fuse: PackedMatrix | None,
        fuse_bias: int,
        norm: tuple[int, int],
        head: PackedMatrix | None,
        positions: int,
        position_count: int,
        embedding_scale: float,
        logit_scale: float,
        logit_cap: float,
    ) -> None: ...  # norm: (weight, bias)

_Layer = tuple[Sequence[tuple[int, int]], Sequence[PackedMatrix], Sequence[int], int, int]
"""(weight, bias) of the norms: input, post, q, k, behind attention, behind MLP; [q, k, v, o, gate, up, down],
without the gate where there is none; their biases; window; rotation."""

class Layers:
    def __init__(
        self,
        shape: Shape,
        layers: Sequence[_Layer],
        ends: Ends,
    ) -> None: ...
    def run(
        self,
        first: int,
        last: int,
        plan: Plan,
        tokens: Sequence[int],
        x: int,
        rotations: Sequence[tuple[int, int]],
        positions: int,
        keys: int,
        values: int,
        half: bool,
        slots: int,
        captures: Sequence[tuple[int, int]],
        beside: int,
        wanted: Sequence[int],
        logits: int,
    ) -> None: ...

def attend(
    plan: Plan,
    q: int,
    keys: int,
    values: int,
    half: bool,
    slots: int,
    kv_heads: int,
    head_size: int,
    heads: int,
    scale: float,
    out: int,
    window: int = 0,
    cap: float = 0.0,
) -> None: ...
def write(
    keys: int, values: int, half: bool, kv_heads: int, head_size: int, slot: int, k: int, v: int
) -> None: ...
def rms_norm(x: int, weight: int, eps: float, rows: int, width: int, out: int) -> None: ...
def layer_norm(x: int, weight: int, bias: int, eps: float, rows: int, width: int, out: int) -> None: ...
def scale_and_cap(x: int, count: int, scale: float, cap: float) -> None: ...
def rotate(x: int, cos: int, sin: int, rows: int, heads: int, head_size: int, size: int) -> None: ...
def draw_row(
    logits: int, ids: int, count: int, temperature: float, state: int, k: int
) -> tuple[list[int], list[float]]: ...
def draw_support(ids: int, z: int, count: int, state: int, k: int) -> tuple[list[int], list[float]]: ...
def rank(logits: int, rows: int, count: int, k: int) -> list[tuple[list[int], list[float]]]: ...
