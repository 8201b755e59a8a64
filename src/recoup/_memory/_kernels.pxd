# C types of _kernels.py, used when it is compiled.
cimport cython

@cython.locals(
    order=list, users=list, outside=int, joins=int, lone=int, dear=int, output=int, spread=int,
    reduce=int, opens=int, transpose=int, reuses=int, elementwise=int, bits=int[::1], shapes=int[::1], starts=int[::1], ids=int[::1], queued=int[::1], read=int[::1],
    readers=int[::1], in_place=cython.uchar[::1], reused=cython.uchar[::1], indexes=list, serial=int, own=int,
    reductions=int, members=list, found=list, usage=list, waiting=list, e=int, at=int, f=int, current=int,
    reach=set, me=int, whole=bint, again=bint, emitted=int, u=int, c=int, mine=set, who=set, y=int, same=bint,
    reads=dict)
cpdef fill(operations, int root, start, int duplication, int most_reductions, int apart=*)

@cython.locals(i=int, count=int)
cpdef remove_user(list users, user)

@cython.locals(n=int)
cpdef int _inner_users(producer, fusion, int here) except -1
