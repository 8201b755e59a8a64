"""Planners for a step: which values to keep, which to recompute, and when. No JAX.

Data flows: Program -> epochs (what is early, what is late) -> zones (where a recomputation belongs) ->
options for each zone (minimum cuts) -> one option a zone (dynamic program) -> a schedule, executed by the
machine -> a ladder of schedules.
"""
