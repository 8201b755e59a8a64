# C types of _timed.py, used when it is compiled.
cimport cython

from recoup._solve._profile cimport i64

cdef class Timed:
    cdef i64 budget
    cdef int n, free, room
    cdef int[::1] starts, ids, code, trial, best, extras, trial_extras, at, last, stored
    cdef i64[::1] sizes, memory, trial_memory
    cdef double[::1] costs, takes, stores, fetches, ready
    cdef public int length, trial_length, best_length, extra_count, trial_extra_count
    cdef public i64 over, trial_over
    cdef public double cost, trial_cost, best_cost

    cdef void _live(self, int v) noexcept nogil
    @cython.locals(now=double, out=double, back=double, moved=double, first=int, extras=int, v=int, i=int,
                   e=int, u=int, over=i64, total=i64)
    cdef int _execute(self, double limit) noexcept nogil
    @cython.locals(i=int)
    cdef void _accept(self) noexcept nogil
