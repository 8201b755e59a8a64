# C types of _annealer.py, used when it is compiled.
cimport cython

from recoup._solve._moves cimport Moves
from recoup._solve._slots cimport i64

cdef class Annealer(Moves):
    cdef double[::1] threshold
    cdef public i64 best_cost
    cdef public int best_length, accepted, feasible
    cdef public double weight, heaviest, temperature, cooling
    cdef int[::1] best
    cdef int done

    cpdef int run(self, int moves)
    @cython.locals(k=int, dirty=int, old_cost=i64, slack=double)
    cdef int _run(self, int moves) noexcept nogil
    @cython.locals(s=int, length=int)
    cdef void _save(self) noexcept nogil
    @cython.locals(s=int, i=int, length=int)
    cdef void _save_before(self) noexcept nogil
