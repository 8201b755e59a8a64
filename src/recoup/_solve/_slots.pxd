# C types of _slots.py, used when it is compiled.
cimport cython

from recoup._solve._profile cimport Profile, i64

cdef class Slots(Profile):
    cdef public i64 n, cost
    cdef public int copies, free, extra_count, logged
    cdef int[::1] starts, ids, first, events, count, computed, primary, fetched
    cdef int[::1] op_at, extra_at, fetch_at, extras, scratch, log_kind, log_op, log_slot
    cdef i64[::1] sizes, costs, stores, fetches

    @cython.locals(i=int, s=int, v=int, e=int, w=int, o=int, a=int, b=int, total=i64)
    cdef void _load(self, int[::1] packed, int length, int[::1] holes) noexcept nogil
    @cython.locals(low=int, high=int, o=int, mid=int)
    cdef int _find(self, int v, int s) noexcept nogil
    @cython.locals(d=i64)
    cdef void _change(self, int v, int before, int s, int after, int is_use, int sign) noexcept nogil
    @cython.locals(o=int, k=int, i=int, before=int, after=int)
    cdef void _event_in(self, int v, int s, int is_use) noexcept nogil
    @cython.locals(o=int, k=int, i=int, j=int, before=int, after=int)
    cdef void _event_out(self, int v, int s, int is_use) noexcept nogil
    cdef void _count_fetch(self, int v) noexcept nogil
    @cython.locals(e=int)
    cdef void _place(self, int v, int s, int flags) noexcept nogil
    @cython.locals(e=int, i=int, last=int)
    cdef void _take(self, int v, int s) noexcept nogil
    @cython.locals(old=int, i=int)
    cdef void _swap_roles(self, int v, int s) noexcept nogil
    cdef void _note(self, int kind, int v, int s) noexcept nogil
    cdef void _insert(self, int v, int s, int flags) noexcept nogil
    @cython.locals(flags=int)
    cdef void _remove(self, int v, int s) noexcept nogil
    cdef void _promote(self, int v, int s) noexcept nogil
    @cython.locals(i=int)
    cdef void _undo(self) noexcept nogil
