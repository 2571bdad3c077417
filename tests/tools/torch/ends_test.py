"""What becomes of calls, communicators and groups where something ends before its time: Ctrl-C, errors
of this rank alone, close() and abort() beside other threads, the end of the interpreter."""

import gc
import os
import signal
import sys
import threading
import time
import weakref

import ranks
import torch
import torch.distributed as dist

LONG_S = 60.0


def _text_of(start):
    try:
        start()
    except (RuntimeError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _replace(owner, name, function):
    """Puts function(the original, *arguments) in its place. Returns what undoes that."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *arguments: function(original, *arguments))
    return lambda: setattr(owner, name, original)


def _columns(value):
    """A tensor that travels as a copy."""
    return torch.full((6, 8), float(value))[:, ::2]


def _sums_wrongly(calls):
    """How many of some calls that all ranks make have wrong sums."""
    rank, world = dist.get_rank(), dist.get_world_size()
    wrong = 0
    for call in range(calls):
        tensor = torch.full((24,), float(rank + call))
        dist.all_reduce(tensor)
        wrong += not bool((tensor == world * call + world * (world - 1) / 2).all())
    return wrong


def copy_fails(error):
    """Rank 1 cannot copy its tensor."""
    from tarpon_torch.blocks import Block

    def fail(original, block):
        raise {"RuntimeError": RuntimeError, "KeyboardInterrupt": KeyboardInterrupt}[error]("none left")

    rank = dist.get_rank()
    texts = []
    for start in (
        lambda: dist.all_reduce(_columns(rank)),
        lambda: dist.all_reduce_coalesced([torch.ones(3), _columns(rank), torch.ones(5)]),
    ):
        restore = _replace(Block, "open", fail) if rank == 1 else lambda: None
        texts.append(_text_of(start))
        restore()
    return [texts, _sums_wrongly(3)]


def test_copy_fails():
    """The call has its number all the same: later ones match."""
    for error in ("RuntimeError", "KeyboardInterrupt"):
        (others, wrong_there), (own, wrong_here) = ranks.run("copy_fails", 2, {"error": error})
        assert all(text == f"{error}: none left" for text in own), own
        assert all("rank 1 refused the call" in text for text in others), others
        assert wrong_there == wrong_here == 0


def resync_fails():
    """Rank 1 cannot copy its tensor."""
    from tarpon_torch import Communicator

    def fail(original, tensor):
        raise RuntimeError("none left")

    store = dist.PrefixStore("resync", dist.distributed_c10d._get_default_store())
    rank = dist.get_rank()
    communicator = Communicator.connect(store, rank, dist.get_world_size(), LONG_S)
    restore = _replace(torch.Tensor, "cpu", fail) if rank == 1 else lambda: None
    text = _text_of(lambda: communicator.resync(torch.ones(5), 0, LONG_S))
    restore()
    later = torch.full((5,), float(rank))
    communicator.resync(later, 0, LONG_S)
    communicator.barrier(LONG_S)
    return [text, float(later.sum())]


def test_resync_fails():
    """The other ranks neither wait for it nor count calls differently."""
    (there, sum_there), (here, sum_here) = ranks.run("resync_fails", 2)
    assert here == "RuntimeError: none left" and "differ in root or bytes" in there, (here, there)
    assert sum_there == sum_here == 0


def interrupted():
    """Ctrl-C comes to rank 0 when its call has begun in the library, and before Python knows that."""
    from tarpon_torch import library

    def start(original, *arguments):
        original(*arguments)
        raise KeyboardInterrupt

    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    group = dist.distributed_c10d._get_default_group()
    tensor = torch.full((1000,), float(rank))
    told = ["", True, True, 0]
    if rank == 0:
        lives = weakref.ref(tensor)
        restore = _replace(library.library(), "tarpon_allreduce_start", start)
        told[0] = _text_of(
            lambda: group.communicator.allreduce(
                tensor, library.SUM, deadline=LONG_S, ended=lambda call: None
            )
        )
        restore()
        del tensor
        gc.collect()
        told[1] = lives() is not None
        store.set("interrupted", "")
        end = time.monotonic() + LONG_S
        while lives() is not None and time.monotonic() < end:
            time.sleep(0.01)
        told[2] = lives() is None
    else:
        store.wait(["interrupted"])
        dist.all_reduce(tensor)
    told[3] = _sums_wrongly(3)
    return told


def test_interrupted():
    """The tensor lives as long as the library uses it, and no longer."""
    for text, lived, is_gone, wrong in ranks.run("interrupted", 2):
        assert text.startswith("KeyboardInterrupt") or text == "", text
        assert lived and is_gone and wrong == 0, (lived, is_gone, wrong)


def interrupted_between(seconds):
    """Ctrl-C comes again and again while rank 0 starts lists of calls. How many of each list have ended,
    and how many starts were interrupted."""
    from tarpon_torch import library

    communicator = dist.distributed_c10d._get_default_group().communicator
    main, is_over = threading.main_thread().ident, threading.Event()
    ended, armed, interrupted = [], [], 0

    def on_signal(*_):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    def storm():
        while not is_over.wait(0.0003):
            signal.pthread_kill(main, signal.SIGINT)

    def start():
        ends = []
        ended.append(ends)
        calls = [
            communicator.prepare(
                _columns(1), library.SUM, deadline=LONG_S, ended=lambda call: ends.append(call.report)
            )
            for _ in range(3)
        ]
        communicator.begin(calls)

    signal.signal(signal.SIGINT, on_signal)
    thread = threading.Thread(target=storm)
    thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            armed.append(True)
            start()
            armed.clear()
        except KeyboardInterrupt:
            interrupted += 1
    is_over.set()
    thread.join()
    communicator.close()
    return [[len(ends) for ends in ended], interrupted]


def test_interrupted_between():
    """A list of calls starts whole or not at all, and all that have started are told of their ends."""
    ((ended, interrupted),) = ranks.run("interrupted_between", 1, {"seconds": 3.0})
    assert interrupted > 30 and ended.count(3) > 30, (interrupted, ended)
    assert set(ended) <= {0, 3}, ended


def test_split_of_a_closed_handle():
    """It keeps nothing of the communicator that it was to be split from."""
    from tarpon_torch import Communicator
    from tarpon_torch.handle import ClosedError, Handle

    parent = Communicator.connect(None, 0, 1, LONG_S)
    child = Handle()
    child.close(seconds=0)
    try:
        child.split(parent._handle, [0], 1, LONG_S)
        raise AssertionError("no error")
    except ClosedError:
        pass
    parent.close(seconds=0)
    assert not parent._handle._users


def closed_beside_others():
    """One thread closes while another one is inside each function."""
    from tarpon_torch import library
    from tarpon_torch.communicator import Communicator

    world, rank = dist.get_world_size(), dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    uses = {
        "tarpon_barrier": lambda one: one.barrier(LONG_S),
        "tarpon_agree": lambda one: one.agree(1, 0.0, False, LONG_S),
        "tarpon_resync": lambda one: one.resync(torch.ones(3), 0, LONG_S),
        "tarpon_rejoin": lambda one: one.rejoin(0.3),
        "tarpon_allreduce_start": lambda one: one.allreduce(
            torch.ones(3), 0, deadline=LONG_S, ended=lambda call: None
        ),
    }
    wrong = []
    for name, use in uses.items():
        one = Communicator.connect(dist.PrefixStore(name, store), rank, world, LONG_S)
        dist.barrier()
        events, is_inside = [], threading.Event()

        def slow(original, *arguments):
            is_inside.set()
            code = original(*arguments)
            time.sleep(0.3)
            events.append("used")
            return code

        def free(original, pointer):
            if pointer.value:
                events.append("freed")
            original(pointer)

        undo = [
            _replace(library.library(), name, slow),
            _replace(library.library(), "tarpon_communicator_free", free),
        ]
        if rank == 0:
            user = threading.Thread(target=lambda: _text_of(lambda: use(one)))
            user.start()
            is_inside.wait()
            one.close(seconds=0)
            user.join()
            if events != ["used", "freed"]:
                wrong.append([name, events])
        for each in undo:
            each()
        dist.barrier()
        one.close(seconds=0)
    return wrong


def test_closed_beside_others():
    """The communicator is freed when they have come out."""
    for wrong in ranks.run("closed_beside_others", 2):
        assert wrong == [], wrong


def aborted_beside_a_slow_start():
    from tarpon_torch import library

    communicator = dist.distributed_c10d._get_default_group().communicator
    is_inside, goes_on = threading.Event(), threading.Event()

    def slow(original, *arguments):
        is_inside.set()
        goes_on.wait(LONG_S)
        return original(*arguments)

    restore = _replace(library.library(), "tarpon_allreduce_start", slow)
    texts = []
    caller = threading.Thread(target=lambda: texts.append(_text_of(lambda: dist.all_reduce(torch.ones(3)))))
    caller.start()
    is_inside.wait()
    aborter = threading.Thread(target=lambda: communicator.abort("for the test"))
    aborter.start()
    aborter.join(LONG_S / 4)
    returned = not aborter.is_alive()
    goes_on.set()
    caller.join()
    restore()
    return [returned, texts]


def test_abort_beside_a_slow_start():
    """abort() waits for no call."""
    for returned, texts in ranks.run("aborted_beside_a_slow_start", 2):
        assert returned and "aborted" in texts[0], (returned, texts)


def closed_by_a_signal_handler():
    """It runs in the thread that is about to begin a call."""
    from tarpon_torch import library

    group = dist.distributed_c10d._get_default_group()

    def start(original, *arguments):
        group.communicator.close(seconds=0)
        return original(*arguments)

    restore = _replace(library.library(), "tarpon_allreduce_start", start)
    text = _text_of(lambda: dist.all_reduce(torch.ones(3)))
    restore()
    return [text, _text_of(lambda: dist.all_reduce(torch.ones(3)))]


def test_closed_by_a_signal_handler():
    for during, later in ranks.run("closed_by_a_signal_handler", 2):
        assert "aborted" in during, during
        assert "closed" in later, later


def told_once():
    """A signal's handler raises the error of another communicator when a call has just begun."""
    from tarpon_torch import Communicator, library

    def start(original, *arguments):
        original(*arguments)
        other.barrier(LONG_S)

    other, one = (Communicator.connect(None, 0, 1, LONG_S) for _ in range(2))
    other.close()
    told = []
    restore = _replace(library.library(), "tarpon_allreduce_start", start)
    text = _text_of(
        lambda: one.allreduce(torch.ones(3), library.SUM, deadline=LONG_S, ended=told.append)
    )
    restore()
    one.close()
    return [text, [str(call.error) for call in told]]


def test_told_once():
    ((text, told),) = ranks.run("told_once", 1)
    assert "closed" in text and told == ["None"], (text, told)


def forked():
    """A child of this process uses its communicator, and makes one of its own."""
    from tarpon_torch import Communicator

    store = dist.HashStore()
    own = Communicator.connect(store, 0, 1, LONG_S, shares_job=True)
    read, write = os.pipe()
    if os.fork() == 0:
        texts = [_text_of(lambda: own.allreduce_now(torch.ones(3), 0, deadline=LONG_S))]

        def anew():
            with Communicator.connect(store, 0, 1, LONG_S, key="child", shares_job=True) as fresh:
                fresh.allreduce_now(torch.ones(3), 0, deadline=LONG_S)

        texts.append(_text_of(anew))
        os.write(write, "; ".join(texts).encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as told:
        return told.read()


def test_forked():
    (text,) = ranks.run("forked", 1)
    assert "was forked" in text and text.endswith("; no error"), text


def left_behind(rounds):
    """Descriptors and threads after rounds of a group whose call fails."""
    held = []
    gc.disable()
    for _ in range(rounds):
        group = dist.new_group()
        dist.all_reduce(torch.ones(3), group=group)
        dist.barrier()
        group.abort()
        text = _text_of(lambda: dist.all_reduce(torch.ones(3), group=group))
        work = group.allreduce([torch.ones(3)])
        errors = [text, _text_of(work.wait), _text_of(work.wait), str(work.exception())]
        assert all("abort" in error for error in errors), errors
        dist.destroy_process_group(group)
        del group, work
        dist.barrier()
        held.append(_held())
    # Threads take their time to end.
    end = time.monotonic() + LONG_S / 2
    while any(now > then + 2 for then, now in zip(held[1], _held())) and time.monotonic() < end:
        time.sleep(0.01)
    return [*held, _held()]


def _held():
    return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]


def test_failed_call_leaves_nothing():
    for held in ranks.run("left_behind", 2, {"rounds": 6}):
        assert all(later <= first + 2 for first, later in zip(held[1], held[-1])), held


def no_thread():
    """On rank 1 the system allows no further thread."""

    def fail(original, thread):
        if thread.name.startswith("tarpon"):
            raise RuntimeError("can't start new thread")
        original(thread)

    if dist.get_rank() == 1:
        _replace(threading.Thread, "start", fail)
    began = time.monotonic()
    text = _text_of(lambda: dist.new_group(backend="tarpon"))
    dist.barrier()
    return [text, time.monotonic() - began]


def test_no_thread():
    """All ranks are told, and the interpreter ends in peace."""
    results, errors = ranks.run("no_thread", 3, backend="gloo+tarpon", said=True)
    for text, seconds in results:
        assert "rank 1: can't start new thread" in text and "ulimit -u" in text, text
        assert seconds < LONG_S / 2
    assert not any("cannot join" in error for error in errors), errors


def no_thread_for_a_message():
    """On rank 1 the system allows no further thread. Its message fails on both ranks, and waits nowhere."""

    def fail(original, thread):
        if thread.name == "tarpon-end":
            raise RuntimeError("can't start new thread")
        original(thread)

    rank, tensor = dist.get_rank(), torch.ones(1)
    restore = _replace(threading.Thread, "start", fail) if rank == 1 else lambda: None
    began = time.monotonic()
    text = _text_of(lambda: dist.irecv(tensor, 1 - rank).wait() if rank == 1 else dist.send(tensor, 1))
    seconds = time.monotonic() - began
    restore()
    return [text, seconds]


def test_no_thread_for_a_message():
    results = ranks.run("no_thread_for_a_message", 2)
    assert "rank 1 refused" in results[0][0] and "ulimit -u" in results[1][0], results
    assert max(seconds for _, seconds in results) < LONG_S / 2


def daemon_threads():
    """Threads that are inside functions of the library when the interpreter ends."""
    from tarpon_torch.communicator import Communicator

    store = dist.distributed_c10d._get_default_store()
    communicator = Communicator.connect(
        dist.PrefixStore("daemons", store), dist.get_rank(), dist.get_world_size(), LONG_S
    )
    for work in (
        lambda: communicator.agree(1, 0.0, False, LONG_S),
        lambda: communicator.allreduce_now(torch.ones(1000), 0, tag=1, deadline=LONG_S),
        lambda: communicator.barrier(LONG_S),
    ):
        if dist.get_rank() == 1:
            threading.Thread(target=_text_of, args=(work,), daemon=True).start()
    time.sleep(0.2)


def test_end_beside_daemon_threads():
    assert ranks.run("daemon_threads", 2) == [None, None]


FUNCTIONS = {
    function.__name__: function
    for function in (
        copy_fails,
        resync_fails,
        interrupted,
        closed_beside_others,
        aborted_beside_a_slow_start,
        closed_by_a_signal_handler,
        left_behind,
        no_thread,
        no_thread_for_a_message,
        told_once,
        forked,
        daemon_threads,
        interrupted_between,
    )
}
TESTS = {
    "copy_fails": test_copy_fails,
    "resync_fails": test_resync_fails,
    "interrupted": test_interrupted,
    "interrupted_between": test_interrupted_between,
    "split_of_a_closed_handle": test_split_of_a_closed_handle,
    "closed_beside_others": test_closed_beside_others,
    "abort": test_abort_beside_a_slow_start,
    "signal_handler": test_closed_by_a_signal_handler,
    "told_once": test_told_once,
    "forked": test_forked,
    "failed_call": test_failed_call_leaves_nothing,
    "no_thread": test_no_thread,
    "no_thread_for_a_message": test_no_thread_for_a_message,
    "daemon_threads": test_end_beside_daemon_threads,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
