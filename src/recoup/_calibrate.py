"""What operations cost on this device: a roofline, measured once and kept in the user's cache directory.

Idea: an operation takes the longer of its arithmetic at the device's rate for its kind (matrix products,
convolutions, transcendental functions, random bits) and of its bytes at the memory's rate (Williams, Waterman
and Patterson, "Roofline", 2009). So recomputing what only moves memory is told from recomputing products.
The cache is one JSON file for each device kind and JAX version, with a checksum; a damaged one is measured
again and replaced in one step.
Limits: one rate for each kind, measured on large float32 arrays: small operations are slower, other types
differ. Of a chain of fused operations a quarter of the bytes is taken to reach memory.
"""

import hashlib
import json
import math
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recoup import _compat, _cost, _plan_file
from recoup._config import config
from recoup._inline import Flat
from recoup._program import Program
from recoup._report.text import heading, table

if TYPE_CHECKING:
    import jax

FORMAT = 3
FUSED_SHARE = 0.25  # of the bytes of an operation that is computed inside its readers
LEAST_SECONDS = 0.004  # a probe grows until it takes this long
REPEATS = 7
DOUBLINGS = 6

TRANSCENDENTAL = frozenset(
    ["exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "erf_inv", "sin", "cos",
     "tan", "pow", "cbrt", "atan2", "lgamma", "digamma"]
)  # fmt: skip
RANDOM = frozenset(["random_bits", "threefry2x32", "random_split", "random_fold_in"])


class CacheWarning(UserWarning):
    """A cached calibration that is damaged, or that cannot be written."""


@dataclass(frozen=True)
class Roofline:
    """Rates of one device. Prints as a table.

    Attributes:
      device: kind of the device, as JAX names it.
      jax: version that it was measured with.
      product_flops: floating-point operations a second of a large matrix product.
      convolution_flops: the same of a convolution.
      memory_bytes: bytes read and written a second by an elementwise operation on large arrays, in place.
      fresh_bytes: bytes of memory that a run uses first, a second, beyond moving them: an operating system
        hands out pages when they are first written, in every run anew where the program's memory is returned
        after each. Devices with memory of their own hand it out at once: then this is very large.
      transcendentals: elements a second of tanh, beyond moving them.
      random_words: 32-bit words of random bits a second.
      host_bytes: bytes a second between the device's memory and the host's, the slower way. (On a CPU these
        are one memory, and it is the rate of a copy.)
      link_bytes: bytes a second that each of several devices receives in a gather; None where there is one
        device: then a tenth of the memory's rate is assumed.
    """

    device: str
    jax: str
    product_flops: float
    convolution_flops: float
    memory_bytes: float
    fresh_bytes: float
    transcendentals: float
    random_words: float
    host_bytes: float
    link_bytes: float | None = None

    def seconds(self, eqn: Any, fused: bool = False) -> float:
        """Predicted seconds of one equation (of a loop: of all its iterations).

        Args:
          eqn: of a jaxpr.
          fused: it is computed inside its readers, so that most of its bytes never reach memory.
        """
        name = eqn.primitive.name
        if name == "scan":
            scan = _compat.scan_parts(eqn)
            return scan.length * self._body(scan.body)
        bodies = _cost.sub_jaxprs(eqn)
        if name == "cond":
            return max((self._body(body) for body in bodies), default=0.0)
        if bodies and name not in ("reduce", "reduce_window", "scatter", "scatter-add", "sort"):
            return sum(self._body(body) for body in bodies)
        if name in _FREE:
            return 0.0
        moved = sum(_compat.aval_bytes(v.aval) for v in eqn.outvars)
        if not fused:
            moved += sum(_compat.aval_bytes(v.aval) for v in eqn.invars)
        memory = (FUSED_SHARE if fused else 1.0) * moved / self.memory_bytes
        if name in _cost.GATHERS:
            return memory + _cost.gathered_bytes(eqn) / (self.link_bytes or self.memory_bytes / 10)
        if name == "conv_general_dilated":
            return max(_cost.eqn_flops(eqn) / self.convolution_flops, memory)
        elements = sum(math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars)
        if name in TRANSCENDENTAL:
            return memory + elements / self.transcendentals
        if name in RANDOM:
            return memory + elements / self.random_words
        return max(_cost.eqn_flops(eqn) / self.product_flops, memory)

    def _body(self, jaxpr: Any) -> float:
        inner, _ = _compat.open_jaxpr(jaxpr)
        return sum(self.seconds(eqn, eqn.primitive.name not in _UNFUSED) for eqn in inner.eqns)

    def price(self, eqn: Any, fused: bool = False) -> float:
        """`seconds` in floating-point operations of a product: the scale of the planner's costs."""
        return self.product_flops * self.seconds(eqn, fused)

    def __str__(self) -> str:
        rows = [
            ["matrix products", f"{self.product_flops / 1e9:.4g}", "GFLOP/s"],
            ["convolutions", f"{self.convolution_flops / 1e9:.4g}", "GFLOP/s"],
            ["memory", f"{self.memory_bytes / 1e9:.4g}", "GB/s"],
            ["memory used first", f"{self.fresh_bytes / 1e9:.4g}", "GB/s, beyond moving"],
            ["transcendental functions", f"{self.transcendentals / 1e9:.4g}", "G elements/s"],
            ["random bits", f"{self.random_words / 1e9:.4g}", "G words/s"],
            ["to the host and back", f"{self.host_bytes / 1e9:.4g}", "GB/s each way"],
        ]
        if self.link_bytes is not None:
            rows.append(["between devices", f"{self.link_bytes / 1e9:.4g}", "GB/s"])
        title = f"{self.device}, JAX {self.jax} (timed on large float32 arrays)"
        return "\n".join([heading(title), table(["", "", ""], rows, right=(1,))])


_FREE = frozenset(["recoup_barrier", "optimization_barrier", "recoup_keep", "name"])  # they order, or name
_UNFUSED = frozenset(
    ["dot_general", "conv_general_dilated", "scan", "while", "cond", "sort", "gather", "fft"]
)


def predicted_seconds(flat: Flat, program: Program, roofline: Roofline, fresh_bytes: int = 0) -> float:
    """The roofline's time of one run of a program, operation after operation.

    Args:
      flat, program: operation `i` of `program` is equation `i` of `flat`.
      roofline: the rates.
      fresh_bytes: temporaries and results, which a run takes from the operating system.
    """
    work = sum(roofline.seconds(eqn, op.fusible) for op, eqn in zip(program.ops, flat.eqns, strict=True))
    return work + fresh_bytes / roofline.fresh_bytes


def calibrate(*, force: bool = False) -> Roofline:
    """The roofline of the first local device: read from the cache, or measured (seconds) and cached.

    The cache is `recoup.config.cache_dir`. A damaged file is measured again, with a `CacheWarning`.

    Args:
      force: measure again even if it is cached.
    """
    import jax

    device = jax.local_devices()[0]
    path = _path(device.device_kind, jax.__version__)
    if not force and path.exists():
        try:
            return _read(path)
        except (OSError, ValueError) as error:
            warnings.warn(f"{path}: {error}; measured again", CacheWarning, stacklevel=2)
    found = _measure(device)
    try:
        _write(path, found)
    except OSError as error:
        warnings.warn(f"the calibration cannot be kept in {path}: {error}", CacheWarning, stacklevel=2)
    return found


def _path(device: str, version: str) -> Path:
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{device}-jax-{version}").strip("-")
    return config.cache_dir / f"calibration-{slug}.json"


def _read(path: Path) -> Roofline:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        data, checksum = stored["roofline"], stored["checksum"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("not a calibration") from error
    names = {f.name for f in fields(Roofline)}
    if stored.get("format") != FORMAT or checksum != _checksum(data) or set(data) != names:
        raise ValueError("a damaged calibration, or one of another format")
    found = Roofline(**data)
    rates = [getattr(found, f.name) for f in fields(found) if f.type is float]
    rates += [] if found.link_bytes is None else [found.link_bytes]
    if not all(isinstance(rate, float) and math.isfinite(rate) and rate > 0 for rate in rates):
        raise ValueError("a calibration with a rate that is not positive")
    return found


def _write(path: Path, found: Roofline) -> None:
    data = asdict(found)
    text = json.dumps({"format": FORMAT, "roofline": data, "checksum": _checksum(data)}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    _plan_file.write(path, text + "\n", force=True)  # readers see the old file or the new one, never a part


def _checksum(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _measure(device: "jax.Device") -> Roofline:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    def ones(*shape: int) -> Any:
        return jax.device_put(jnp.full(shape, 0.5, jnp.float32), device)

    def product(scale: int) -> tuple[float, float]:
        n = 512 * scale
        a = ones(n, n)
        return 2.0 * n**3, _seconds(jax.jit(lambda a: a @ a), a)

    def convolution(scale: int) -> tuple[float, float]:
        x, k = ones(4 * scale, 64, 32, 32), ones(64, 64, 3, 3)
        call = jax.jit(lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"))
        return 2.0 * x.size * 64 * 9, _seconds(call, x, k)

    def moving(scale: int) -> tuple[float, float]:
        x = ones((4 << 20) * scale)
        return 2.0 * x.nbytes, _seconds(jax.jit(lambda x: 0.5 * x + 0.25, donate_argnums=0), x, in_place=True)

    def fresh(scale: int) -> tuple[float, float]:
        x = ones((4 << 20) * scale)
        return float(x.nbytes), _seconds(jax.jit(lambda x: 0.5 * x + 0.25), x)

    def tanh(scale: int) -> tuple[float, float]:
        x = ones((4 << 20) * scale)
        return float(x.size), _seconds(jax.jit(jnp.tanh), x)

    def draws(scale: int) -> tuple[float, float]:
        key, count = jax.random.key(0), (1 << 20) * scale
        return float(count), _seconds(jax.jit(lambda key: jax.random.bits(key, (count,))), key)

    def link(to_host: bool) -> Callable[[int], tuple[float, float]]:
        def probe(scale: int) -> tuple[float, float]:
            ends = jax.memory.Space.Device, jax.memory.Space.Host
            x = jax.device_put(ones((4 << 20) * scale), ends[not to_host])
            return float(x.nbytes), _seconds(lambda x: jax.device_put(x, ends[to_host]), x)

        return probe

    devices = jax.local_devices()

    def gather(scale: int) -> tuple[float, float]:
        mesh = jax.make_mesh((len(devices),), ("all",), devices=devices, axis_types=(AxisType.Auto,))
        spec: Any = PartitionSpec
        parts = NamedSharding(mesh, spec("all"))
        x = jax.device_put(jnp.full((len(devices), (1 << 20) * scale), 0.5, jnp.float32), parts)
        whole = jax.jit(lambda x: x + 1, out_shardings=NamedSharding(mesh, spec()))
        return x.nbytes - x.nbytes / len(devices), _seconds(whole, x)

    probes = (product, convolution, moving, fresh, tanh, draws)
    products, convolutions, memory, new, functions, words = map(_rate, probes)
    host = min(map(_rate, (link(True), link(False))))
    # What has a new result moves its bytes too, and a transcendental does both: only what each takes beyond.
    first = max(1 / new - 2 / memory, 1e-3 / memory)
    beyond = max(1 / functions - 4 / new, 0.05 / functions)
    exchanged = _rate(gather) if len(devices) > 1 else None
    return Roofline(
        device.device_kind,
        jax.__version__,
        products,
        convolutions,
        memory,
        1 / first,
        1 / beyond,
        words,
        host,
        exchanged,
    )


def _rate(probe: Callable[[int], tuple[float, float]]) -> float:
    """Work a second, of a probe that is made larger until it takes long enough to time."""
    for doubling in range(DOUBLINGS):
        work, seconds = probe(2**doubling)
        if seconds >= LEAST_SECONDS:
            break
    return work / seconds


def _seconds(call: Any, *args: Any, in_place: bool = False) -> float:
    """The quickest of several runs, the first (which compiles) left out; `in_place`: on the last result."""
    result = call(*args).block_until_ready()
    times = []
    for _ in range(REPEATS):
        args = (result,) if in_place else args
        began = time.perf_counter()
        result = call(*args).block_until_ready()
        times.append(time.perf_counter() - began)
    return min(times)
