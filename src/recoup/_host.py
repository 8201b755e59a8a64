"""Host memory beside a device: what moving values there and back is taken to cost. No JAX until asked.

Idea: a link of one rate in each direction, and the device's arithmetic rate to compare it with, are enough to
say whether a value is worth moving. `recoup.calibrate` measures both; a `HostMemory` made by hand describes a
device that is not at hand.
Limits: rates only, no latency; both directions at once at full rate.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recoup._calibrate import Roofline

ASSUMED = "assumed"
NOT_MEASURED = "not measured for speed"
SAME = "none to move values to: here the host's memory is the device's"


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host that a step's values may be moved to, for `offload=` of `recoup.plan` and `fit`.

    Attributes:
      bytes_per_second: rate of the link, each way.
      flops_per_second: the device's arithmetic rate; with the link's it says what moving a value is worth.
      kind: JAX's name for the memory; what it calls memory of kind "pinned_host".
      smallest_bytes: smaller values stay on the device.
      source: where the rates are from.
    """

    bytes_per_second: float = 25e9
    flops_per_second: float = 100e12
    kind: str = "pinned_host"
    smallest_bytes: int = 2**20
    source: str = ASSUMED

    def __post_init__(self) -> None:
        for name in ("bytes_per_second", "flops_per_second"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)}: a rate is above 0")
        if self.kind != "pinned_host":
            raise ValueError(f'kind={self.kind!r}: values are moved to "pinned_host"')

    @property
    def flops_per_byte(self) -> float:
        """Floating-point operations in the time in which one byte goes one way."""
        return self.flops_per_second / self.bytes_per_second

    def __str__(self) -> str:
        rate = f"{self.bytes_per_second / 1e9:.4g} GB/s each way ({self.source})"
        return f"{self.kind}, {rate}; {NOT_MEASURED}"


def described_by(roofline: "Roofline") -> HostMemory:
    """The host memory that a calibration found."""
    return HostMemory(roofline.host_bytes, roofline.product_flops, source="measured by recoup.calibrate")


def resolve(offload: "bool | HostMemory", *, compiles: bool) -> HostMemory | None:
    """What `offload=` means here; None where nothing is moved.

    On a CPU the host's memory is the device's: nothing is moved there, except in a plan that is made for a
    `HostMemory` and not compiled.

    Args:
      offload: False, True (measure the link, or read the calibration), or a description.
      compiles: whether the step is compiled for this backend.
    """
    if offload is False:
        return None
    if not isinstance(offload, bool | HostMemory):
        raise TypeError(f"offload={offload!r}: True, False or a recoup.HostMemory")
    if isinstance(offload, HostMemory) and not compiles:
        return offload
    if not apart():
        return None
    if isinstance(offload, HostMemory):
        return offload
    from recoup._calibrate import calibrate

    return described_by(calibrate())


def apart() -> bool:
    """Whether the first local device's memory is another than the host's, and can be moved to it."""
    import jax

    device = jax.local_devices()[0]
    kinds = {memory.kind for memory in device.addressable_memories()}
    return device.platform != "cpu" and "pinned_host" in kinds
