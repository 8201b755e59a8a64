# C types of _link.py, used when it is compiled.
cimport cython

from recoup._solve._timed cimport Timed

ctypedef unsigned long long u64

cdef class Link(Timed):
    cdef u64 state, factor, increment, mask
    cdef int failed
    cdef double[::1] threshold
    cdef public double weight, temperature, cooling

    cpdef run(self, int moves)
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
