# C types of _heap.py, used when it is compiled.
cimport cython

ctypedef long long i64

@cython.locals(
    n=int, low=i64[::1], high=i64[::1], begin=i64[::1], finish=i64[::1], top=i64, i=int, j=int, k=int, need=i64,
    first=i64, last=i64, reach=i64, at=i64, best=i64, gap=i64)
cpdef i64 _place(const i64[::1] size, const i64[::1] start, const i64[::1] end) except -1
