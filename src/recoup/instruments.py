"""Instruments: where the memory and the time of a step go, each number beside what produced it.

Every function takes a step and its arguments (or what `recoup.fit` returned) and gives a result that prints
as a table, with `.readings` (a `Reading` each), `.to_dict()` and `.to_json()`. `INSTRUMENTS` lists them by
cost, `measure` runs several. `docs/instruments.md` explains each.
"""

from recoup._instruments.allocator import AllocatorMemory as AllocatorMemory
from recoup._instruments.allocator import allocator as allocator
from recoup._instruments.arena import Arena as Arena
from recoup._instruments.arena import Occupant as Occupant
from recoup._instruments.catalogue import INSTRUMENTS as INSTRUMENTS
from recoup._instruments.compiled import arena_of as arena_of
from recoup._instruments.compiled import compiled as compiled
from recoup._instruments.dump import dump as dump
from recoup._instruments.dump_files import Dump as Dump
from recoup._instruments.dump_files import read_dump as read_dump
from recoup._instruments.measure import Measurements as Measurements
from recoup._instruments.measure import measure as measure
from recoup._instruments.process import ProcessMemory as ProcessMemory
from recoup._instruments.process import process as process
from recoup._instruments.reading import Reading as Reading
from recoup._instruments.recomputed import Recomputed as Recomputed
from recoup._instruments.recomputed import recomputed as recomputed
from recoup._instruments.trace import Trace as Trace
from recoup._instruments.trace import trace as trace
from recoup._residuals import residuals as residuals
from recoup._timeline import timeline as timeline
