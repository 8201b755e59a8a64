# C types of _profile.py, used when it is compiled.
cimport cython

ctypedef long long i64

cdef class Profile:
    cdef public i64 budget, over
    cdef public int slots, blocks, block_shift
    cdef i64 hole
    cdef i64[::1] memory, shift, top, over_in

    @cython.locals(b=int)
    cpdef void set_budget(self, i64 budget)
    @cython.locals(s=int, end=int, best=i64)
    cdef void _summit(self, int b) noexcept nogil
    @cython.locals(s=int, end=int, base=i64, total=i64, x=i64)
    cdef void _excess(self, int b) noexcept nogil
    @cython.locals(s=int, best=i64, x=i64)
    cdef void _part(self, int b, int left, int right, i64 d) noexcept nogil
    @cython.locals(b=int, end=int)
    cdef void _add(self, int left, int right, i64 d) noexcept nogil
