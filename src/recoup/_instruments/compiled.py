"""The `compiled` instrument: what the compiler reserved, and who occupies its temporaries at their peak.

Idea: compile, and read the memory analysis, the buffer assignment and the optimized program that every
`jax.stages.Compiled` holds; no dump is needed.
Limits: per device. Scratch inside library calls, the runtime and the compiler are not in it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recoup import _compat
from recoup._compiling import Fitted
from recoup._instruments.arena import Arena
from recoup._instruments.assignment import parse_assignment
from recoup._instruments.hlo import parse_module
from recoup._instruments.occupancy import occupancy
from recoup._instruments.subject import prepare
from recoup.errors import InstrumentError


def compiled(
    step: Callable[..., Any] | Fitted,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Arena:
    """Compiles a step and breaks its memory down. Nothing runs.

    Args:
      step: a function of arrays, or what `recoup.fit` returned (read as it is, not compiled again).
      *args: its arguments: arrays, `jax.ShapeDtypeStruct`, or trees of them.
      kwargs, donate_argnums, static_argnums, static_argnames, compiler_options: as for `recoup.fit`.

    Returns:
      An `Arena`; sizes are bytes.
    """
    subject = prepare(
        step,
        args,
        kwargs,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        compiler_options=compiler_options,
    )
    return arena_of(subject.compiled, subject.constants_bytes)


def arena_of(compiled: Any, constants_bytes: int = 0) -> Arena:
    """The arena of a program that is compiled already.

    Args:
      compiled: a `jax.stages.Compiled`.
      constants_bytes: of the arrays that the step closes over, which the compiler's own sizes leave out.

    Raises:
      InstrumentError: the backend gives no memory analysis.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        raise InstrumentError("this backend gives no memory analysis of a compiled program")
    temporaries = int(stats.temp_size_in_bytes)
    found = None
    if temporaries and stats.serialized_buffer_assignment_proto:
        module = parse_module(_compat.optimized_module(compiled))
        allocations = parse_assignment(stats.serialized_buffer_assignment_proto)
        found = occupancy(module, allocations, _compat.library_paths())
    return Arena(
        arguments_bytes=int(stats.argument_size_in_bytes),
        outputs_bytes=int(stats.output_size_in_bytes),
        aliased_bytes=int(stats.alias_size_in_bytes),
        temporaries_bytes=temporaries,
        constants_bytes=constants_bytes,
        occupants=found.occupants if found else (),
        moments=found.moments if found else (),
        peak=found.peak if found else 0,
    )
