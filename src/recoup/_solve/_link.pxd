# C types of _link.py, used when it is compiled.
cimport cython

from recoup._solve._profile cimport i64

ctypedef unsigned long long u64

cdef class Link:
    cdef u64 state, factor, increment, mask
    cdef i64 budget
    cdef int n, free, room, failed
    cdef int[::1] starts, ids, code, trial, best, extras, trial_extras, at, last, stored
    cdef i64[::1] sizes, memory, trial_memory
    cdef double[::1] costs, takes, stores, fetches, ready, threshold
    cdef public int length, trial_length, best_length, extra_count, trial_extra_count, done, legal
    cdef public i64 over, trial_over
    cdef public double cost, trial_cost, best_cost, weight, temperature, cooling

    cpdef run(self, int moves)
    cdef void _live(self, int v) noexcept nogil
    @cython.locals(now=double, out=double, back=double, moved=double, first=int, extras=int, v=int, i=int,
                   e=int, u=int, over=i64, total=i64)
    cdef int _execute(self, double limit) noexcept nogil
    @cython.locals(i=int)
    cdef void _accept(self) noexcept nogil
    cdef u64 _random(self) noexcept nogil
    cdef int _below(self, u64 n) noexcept nogil
    @cython.locals(feasible=int, k=int, i=int, slack=double, limit=double)
    cdef void _run(self, int moves) noexcept nogil
    @cython.locals(kind=int)
    cdef void _move(self) noexcept nogil
    @cython.locals(i=int)
    cdef void _put(self, int place, int code) noexcept nogil
    @cython.locals(i=int)
    cdef void _cut(self, int place) noexcept nogil
    @cython.locals(i=int)
    cdef int _find(self, int code) noexcept nogil
    @cython.locals(e=int)
    cdef int _reads(self, int code, int v) noexcept nogil
    @cython.locals(i=int)
    cdef int _event_before(self, int v, int place) noexcept nogil
    @cython.locals(i=int, j=int, kind=int, code=int)
    cdef void _shift(self) noexcept nogil
    @cython.locals(i=int)
    cdef void _unstore(self, int v) noexcept nogil
    @cython.locals(i=int, code=int)
    cdef void _remove(self) noexcept nogil
    @cython.locals(i=int, code=int)
    cdef void _swap(self) noexcept nogil
    @cython.locals(first=int, before=int)
    cdef int _store(self, int v, int fetch) noexcept nogil
    @cython.locals(p=int, d=int, i=int, op=int, u=int, a=int, place=int, _=int)
    cdef void _add(self) noexcept nogil
    @cython.locals(added=int, e=int, w=int, before=int, grown=int)
    cdef int _again(self, int v, int place, int p, int depth) noexcept nogil
