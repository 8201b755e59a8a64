# C types of _core.py, used when it is compiled.
cimport cython

ctypedef long long i64

@cython.locals(
    reads_starts=int[::1], reads=int[::1], writes_starts=int[::1], writes=int[::1], producer=int[::1],
    available=cython.uchar[::1], cloned=int[::1], stack=int[::1], n=int, current=int, now=int, i=int, e=int,
    v=int, p=int, depth=int, deepest=int, clones=list)
cpdef arrange(
    tables, int[::1] window, int[::1] zone, int[::1] needs_starts, int[::1] needs,
    cython.uchar[::1] level, list schedule, list owner)

@cython.locals(steps=int, step=int, current=int, seen=cython.uchar[::1], first=cython.uchar[::1])
cpdef step_windows(int[::1] schedule, int[::1] window, int[::1] found)

@cython.locals(
    starts=int[::1], ids=int[::1], fusible=cython.uchar[::1], absorbs=cython.uchar[::1], dear=cython.uchar[::1],
    own=i64[::1], workspace=i64[::1], steps=int, step=int, op=int, total=int, e=int, k=int, source=int,
    made=int[::1], edge_starts=int[::1], edges=int[::1], buffered=cython.uchar[::1], shared=cython.uchar[::1],
    change=i64[::1], head=int[::1], after=int[::1], last=int, reach=int, alive=i64, other=int)
cpdef int follow(
    tables, int[::1] schedule, int[::1] window, i64[::1] size, int[::1] end, i64[::1] live) except -2

@cython.locals(
    zones=int, width=int, best=double[::1], after=double[::1], pick=short[::1], none=double, b=int, reach=int,
    z=int, furthest=int, k=int, most=int, held=int)
cpdef int cheapest(
    int[::1] starts, int[::1] kept, i64[::1] high, double[::1] cost, i64 peak, double unit, int bins,
    short[::1] picked) except -1

@cython.locals(
    starts=int[::1], ids=int[::1], cost=double[::1], steps=int, count=int, made=int[::1], uses=int[::1],
    user=int[::1], again=cython.uchar[::1], gain=double[::1], op=int, step=int, e=int, source=int, at=int)
cpdef repeats_worth(tables, int[::1] schedule, int[::1] early_read, int[::1] last, double[::1] saved)
