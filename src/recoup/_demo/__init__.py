"""`recoup demo`: a character-level GPT trained plain and fitted, side by side, each in a process of its own.

`settings` are the options; `text` the data; `model` the step, as a user would write it; `worker` the process
that holds one of the two steps; `session` drives both and prints.
"""
