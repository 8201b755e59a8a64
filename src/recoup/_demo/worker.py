"""The process that holds one of the demo's two steps: `python -m recoup._demo.worker plain|fitted SETTINGS`.

It prepares (the fitted one plans and certifies), then takes one training step for each line on stdin, and on
"end" reports its peak and ends. It answers in JSON, one object a line, on the stdout it was started with;
whatever else prints goes to stderr.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from recoup._demo.settings import Settings
from recoup.errors import RecoupError

_DONATE = (0, 1)  # parameters and optimizer state: the step may reuse their memory, as in most training loops


def main() -> int:
    kind, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(event: str, **fields: Any) -> None:
        answers.write(json.dumps({"event": event, **fields}) + "\n")
        answers.flush()

    try:
        _work(kind, settings, tell, sys.stdin)
    except RecoupError as error:
        tell("error", code=error.code, message=str(error.args[0]) if error.args else "")
        return 1
    return 0


def _work(kind: str, settings: Settings, tell: Callable[..., None], orders: TextIO) -> None:
    import jax
    import jax.numpy as jnp

    from recoup._demo.model import make_step
    from recoup._demo.text import load_text
    from recoup._instruments.peak import PeakWatch

    text = load_text()
    step, params, opt_state = make_step(settings, len(text.alphabet))

    def batch(i: int) -> dict[str, Any]:
        drawn = text.batch(i, settings.batch, settings.tokens, settings.seed)
        return {name: jnp.asarray(codes) for name, codes in drawn.items()}

    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    tell(
        "start",
        jax=jax.__version__,
        characters=len(text.codes),
        different=len(text.alphabet),
        parameters=size,
    )
    prepare = _prepare_fitted if kind == "fitted" else _prepare_plain
    run = prepare(step, (params, opt_state, batch(0)), settings, tell)
    watch = PeakWatch()
    for order in orders:
        if order.strip() == "end":
            tell("peak", **dataclasses.asdict(watch.read()))
            return
        data = batch(int(order))
        began = time.perf_counter()
        params, opt_state, loss = run(params, opt_state, data)
        for leaf in jax.tree.leaves((params, opt_state, loss)):
            leaf.block_until_ready()
        seconds = time.perf_counter() - began
        tell("step", loss=float(loss).hex(), seconds=seconds)


def _prepare_plain(
    step: Callable[..., Any], args: tuple[Any, ...], settings: Settings, tell: Callable[..., None]
) -> Callable[..., Any]:
    import jax

    from recoup._cli.certificate import memory_data
    from recoup._compiling import CompiledMemory

    began = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=_DONATE).lower(*args).compile()
    seconds = time.perf_counter() - began
    analysis: Any = compiled.memory_analysis()
    memory = CompiledMemory(
        arguments_bytes=analysis.argument_size_in_bytes,
        outputs_bytes=analysis.output_size_in_bytes,
        aliased_bytes=analysis.alias_size_in_bytes,
        temporaries_bytes=analysis.temp_size_in_bytes,
        constants_bytes=0,  # the step closes over no arrays
    )
    tell("ready", seconds=seconds, memory=memory_data(memory))
    return compiled


def _prepare_fitted(
    step: Callable[..., Any], args: tuple[Any, ...], settings: Settings, tell: Callable[..., None]
) -> Callable[..., Any]:
    import recoup
    from recoup._cli.certificate import memory_data
    from recoup._cli.output import as_data
    from recoup._plan import render

    found = recoup.residuals(step, *args)
    tell("residuals", text=str(found), data=as_data(found), total_bytes=found.total_bytes)
    began = time.perf_counter()
    fitted = recoup.fit(step, *args, budget=settings.budget, donate_argnums=_DONATE)
    seconds = time.perf_counter() - began
    sizes = {"planned_bytes": fitted.plan.peak_bytes, "unplanned_bytes": fitted.plan.unplanned_bytes}
    tell("plan", text=render(fitted.plan, rows=5), data=as_data(fitted.plan), **sizes)
    tell("ready", seconds=seconds, memory=memory_data(fitted.memory))
    run: Callable[..., Any] = fitted
    return run


if __name__ == "__main__":
    sys.exit(main())
