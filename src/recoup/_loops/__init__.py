"""Loops whose reverse pass is bounded: `scan`, `fori_loop`, `while_loop`, `loop_plan`.

schedules, machine, choose: no JAX. runtime, spec, engine, primitives: the engine. nested: JAX's own scans,
cut into segments. capture, api: from a user's function to either.
"""
