#!/usr/bin/env bash
# Checks that object files ask nobody for time, packets, threads, chance or the environment; prints
# OBJECT: SYMBOL for each call that does.
#
#   sans_io.sh NM OBJECT...
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 NM OBJECT..." >&2; exit 2; }
nm=$1
shift

clocks='clock|clock_gettime|clock_nanosleep|gettimeofday|time|nanosleep|usleep|sleep|timerfd_.*'
sockets='socket|bind|connect|listen|accept4?|send(to|msg|mmsg)?|recv(from|msg|mmsg)?|[gs]etsockopt'
waits='poll|ppoll|select|pselect|epoll_.*|eventfd|io_uring_.*|syscall|ioctl'
files='open(64|at)?|fopen(64)?|read|write|pread(64)?|pwrite(64)?|mmap(64)?'
threads='pthread_.*|thrd_.*|mtx_.*|cnd_.*|sem_.*|sched_.*|fork|vfork|kill|signal|sigaction'
chance='s?rand|rand_r|s?random|[dlm]rand48|getrandom|getentropy|arc4random.*'
surroundings='(secure_)?getenv|setenv|putenv|environ|getpid|gethostname'
# C++: std::chrono clocks, std::thread, mutexes, condition variables, futures, random_device, streams.
cplusplus='_ZN.*(6chrono.*(steady|system|high_resolution)_clock|6thread|5mutex|18condition_variable'
cplusplus+='|13random_device|__atomic_futex|basic_[io]*fstream|__future_base).*'
forbidden="^($clocks|$sockets|$waits|$files|$threads|$chance|$surroundings|$cplusplus)\$"

broken=0
for object in "$@"; do
  # Only strong references: libstdc++ mentions pthread symbols weakly wherever a shared_ptr is used.
  undefined=$("$nm" --undefined-only --format=posix "$object" |
    awk '$2 == "U" { sub(/@.*/, "", $1); print $1 }')
  if grep -E "$forbidden" <<<"$undefined" | sed "s|^|${object##*/}: |" >&2; then broken=1; fi
done
[ "$broken" -eq 0 ] || exit 1
echo "$# object files without I/O"
