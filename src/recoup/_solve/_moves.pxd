# C types of _moves.py, used when it is compiled.
cimport cython

from recoup._solve._slots cimport Slots, i64

ctypedef unsigned long long u64

cdef class Moves(Slots):
    cdef u64 state, factor, increment, mask
    cdef double[::1] value
    cdef public int starved, depth_limit, longest, reach
    cdef double limit
    cdef int failed, aim

    cdef u64 _random(self) noexcept nogil
    cdef int _below(self, u64 n) noexcept nogil
    @cython.locals(kind=int)
    cdef void _move(self) noexcept nogil
    @cython.locals(start=int, i=int, b=int, size=int, first=int, base=i64, j=int, s=int)
    cdef int _overfull(self) noexcept nogil
    @cython.locals(tries=int)
    cdef int _hole_left(self, int s, int stop) noexcept nogil
    @cython.locals(d=int)
    cdef int _hole_near(self, int s, int low, int high) noexcept nogil
    @cython.locals(computable=int, price=i64)
    cdef int _recipe(self, int v) noexcept nogil
    @cython.locals(p=int, wanted=int, best=int, end=int, _=int, v=int, o=int, i=int, b=int, s=int, recipe=int)
    cdef void _add_aimed(self) noexcept nogil
    @cython.locals(e=int, w=int, o=int, i=int, a=int, chance=int, stop=int, c=int)
    cdef void _again(self, int v, int s, int depth, int recipe) noexcept nogil
    cdef int _founds(self, int v, int s) noexcept nogil
    @cython.locals(o=int)
    cdef int _removable(self, int v, int s) noexcept nogil
    @cython.locals(s=int, v=int)
    cdef void _delete(self) noexcept nogil
    @cython.locals(e=int, w=int, o=int, i=int, a=int, fetched=int)
    cdef void _drop(self, int v, int s) noexcept nogil
    @cython.locals(e=int, s=int, low=int)
    cdef int _operands_ready(self, int v) noexcept nogil
    @cython.locals(kind=int, t=int, flags=int)
    cdef void _relocate(self, int v, int s, int low, int high) noexcept nogil
    @cython.locals(s=int, v=int, low=int, o=int, high=int, i=int)
    cdef void _move_extra(self) noexcept nogil
    @cython.locals(v=int, s=int, p=int, t=int, _=int, i=int, low=int, high=int, o=int)
    cdef void _move_primary(self) noexcept nogil
