"""redis-py's Lock (kind=redis-py) and python-redis-lock (kind=python-redis-lock), as peers: see ../README.md.

Options: lease=MS, for locks that are taken with lease 0 (neither has a default: such a lock has no end, but
python-redis-lock renews itself where it has one); retry=MS, how often redis-py's asks again (it calls that `sleep`).
"""

import os
import queue
import struct
import sys
import threading
import time

import redis
import redis_lock


def microseconds():
    return time.time_ns() // 1000


class RedisPy:
    """A token for each thread, as its `thread_local` has it: one object for all threads that use a name."""

    version = f"redis-py {redis.__version__}"

    def __init__(self, client, options):
        self.client = client
        self.lease = int(options.get("lease", 0))
        self.sleep = int(options.get("retry", 100)) / 1000
        self.locks, self.guard = {}, threading.Lock()

    def lock_of(self, name, lease):
        seconds = (lease or self.lease) / 1000 or None
        with self.guard:
            if (name, seconds) not in self.locks:
                self.locks[name, seconds] = self.client.lock(name, timeout=seconds, sleep=self.sleep)
            return self.locks[name, seconds]

    def take(self, name, wait, lease):
        lock = self.lock_of(name, lease)
        if wait is None:
            return lock.acquire() and lock
        return lock.acquire(blocking=wait > 0, blocking_timeout=wait / 1000) and lock

    def foreign(self, name):
        lock = self.client.lock(name)
        lock.local.token = b"no holder"
        return lock

    def extend(self, lock, lease):
        lock.extend(lease / 1000, replace_ttl=True)

    def state(self, name, held):
        lock = held or self.client.lock(name)
        return f"locked={str(lock.locked()).lower()} holds={int(lock.owned())} ttl=?"

    def force(self, name):
        raise NotImplementedError


class PythonRedisLock:
    """Its names are `lock:NAME` and, for those that wait, `lock-signal:NAME`. A lease is in whole seconds, upwards."""

    version = f"python-redis-lock {redis_lock.__version__}"

    def __init__(self, client, options):
        self.client = client
        self.lease = int(options.get("watchdog", options.get("lease", 0)))

    def lock_of(self, name, lease):
        seconds = -(-(lease or self.lease) // 1000) or None
        renewed = not lease and seconds is not None
        return redis_lock.Lock(self.client, name, expire=seconds, auto_renewal=renewed)

    def take(self, name, wait, lease):
        lock = self.lock_of(name, lease)
        if wait is None:
            return lock.acquire() and lock
        if wait == 0:
            return lock.acquire(blocking=False) and lock
        return lock.acquire(timeout=-(-wait // 1000)) and lock

    def foreign(self, name):
        return redis_lock.Lock(self.client, name, id="no holder")

    def extend(self, lock, lease):
        lock.extend(expire=-(-lease // 1000))

    def state(self, name, held):
        lock = held or redis_lock.Lock(self.client, name)
        return f"locked={str(lock.locked()).lower()} holds={int(lock._held)} ttl=?"

    def force(self, name):
        lock = redis_lock.Lock(self.client, name)
        was = lock.locked()
        lock.reset()
        return was


class Worker:
    """One of the parent's threads."""

    def __init__(self, library, client, label):
        self.library, self.client, self.label = library, client, label
        self.held = {}

    def lock(self, name, lease):
        self.held[name] = self.library.take(name, None, int(lease))
        return str(microseconds())

    def try_(self, name, wait, lease):
        lock = self.library.take(name, int(wait), int(lease))
        at = microseconds()
        if lock:
            self.held[name] = lock
        return f"held {at}" if lock else f"busy {at}"

    def unlock(self, name):
        (self.held.pop(name, None) or self.library.foreign(name)).release()
        return ""

    def extend(self, name, lease):
        self.library.extend(self.held.get(name) or self.library.foreign(name), int(lease))
        return ""

    def force(self, name):
        return str(self.library.force(name)).lower()

    def state(self, name):
        return self.library.state(name, self.held.get(name))

    def count(self, name, key, times, pause, lease):
        return str(self.add_up(name, key, lambda done: done < int(times), pause, lease))

    def contend(self, name, key, millis, pause, lease):
        end = time.monotonic() + int(millis) / 1000
        return str(self.add_up(name, key, lambda _: time.monotonic() < end, pause, lease))

    def cycles(self, name, millis, hold, pause, lease, file):
        """For the benchmarks."""
        end = time.monotonic() + int(millis) / 1000
        hold, pause, lease = int(hold) / 1_000_000, int(pause) / 1_000_000, int(lease)
        visits = []
        while time.monotonic() < end:
            lock = self.library.take(name, None, lease)
            entered = time.monotonic_ns()
            if hold:
                time.sleep(hold)
            visits.append((entered, time.monotonic_ns()))
            lock.release()
            if pause:
                time.sleep(pause)
        if file != "-":
            with open(file, "wb") as out:
                out.write(b"".join(struct.pack("<QQ", *visit) for visit in visits))
        return str(len(visits))

    def add_up(self, name, key, more, pause, lease):
        done = 0
        while more(done):
            self.lock(name, lease)
            # Two commands, so that nothing but the lock makes it exact.
            value = int(self.client.get(key) or 0)
            self.client.set(key, value + 1)
            self.client.rpush(f"{key}:by", self.label)
            self.unlock(name)
            done += 1
            time.sleep(int(pause) / 1_000_000)
        return done


def answer(worker, line):
    thread, verb, *arguments = line.split()
    try:
        if verb not in ("lock", "try", "unlock", "extend", "force", "state", "count", "contend", "cycles"):
            raise NotImplementedError
        words = getattr(worker, "try_" if verb == "try" else verb)(*arguments)
        return f"{thread} ok {words}".rstrip()
    except NotImplementedError:
        return f"{thread} error unsupported"
    except Exception as error:
        return f"{thread} error {type(error).__name__}: {' '.join(str(error).split())}"


def main():
    url, *words = sys.argv[1:]
    options = dict(word.split("=", 1) for word in words)
    kind = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}[options["kind"]]
    # One for each thread: its own bound is a hundred, and a later thread gets an error.
    client = redis.Redis.from_url(url, max_connections=1000)
    client.ping()
    library = kind(client, options)
    speak = threading.Lock()

    def say(text):
        with speak:
            print(text, flush=True)

    def work(lines):
        worker = Worker(library, client, options["kind"])
        while True:
            say(answer(worker, lines.get()))

    threads = {}
    say(f"ready {kind.version}")
    for line in sys.stdin:
        name = line.split()[0]
        if name not in threads:
            threads[name] = queue.SimpleQueue()
            threading.Thread(target=work, args=(threads[name],), daemon=True).start()
        threads[name].put(line)
    # At once, with nothing released.
    os._exit(0)


main()
