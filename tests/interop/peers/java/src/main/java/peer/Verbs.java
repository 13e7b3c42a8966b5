package peer;

import java.lang.reflect.Method;
import java.time.Instant;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RObject;

/** What one worker can be told to do. */
final class Verbs {
    private static final long WATCHDOG = -1;

    private final Locks locks;
    private final String label;
    private final Options options;
    private Data data;

    Verbs(Locks locks, Options options) {
        this.locks = locks;
        this.options = options;
        label = options.text("label", "redisson");
    }

    String run(String verb, String[] words) throws Exception {
        RLock lock = locks.named(words[0]);
        switch (verb) {
            case "lock":
                lock(lock, Long.parseLong(words[1]));
                return "" + now();
            case "try":
                return tryLock(lock, Long.parseLong(words[1]), Long.parseLong(words[2])) + " " + now();
            case "unlock":
                lock.unlock();
                return "";
            case "force":
                return "" + lock.forceUnlock();
            case "delete":
                // Every object has it; RLock does not show it.
                return "" + ((RObject) lock).delete();
            case "state":
                return "locked=" + lock.isLocked() + " holds=" + lock.getHoldCount() + " ttl=" + lock.remainTimeToLive();
            case "fenced":
                return fenced(lock, Long.parseLong(words[1]));
            case "token":
                return "" + lock.getClass().getMethod("getToken").invoke(lock);
            case "count":
                return "" + count(lock, words[1], Long.parseLong(words[2]), Long.MAX_VALUE, words, 3);
            case "contend":
                long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[2]));
                return "" + count(lock, words[1], Long.MAX_VALUE, until, words, 3);
            default:
                throw new UnsupportedOperationException("unsupported");
        }
    }

    private void lock(RLock lock, long lease) throws InterruptedException {
        if (options.has("interruptibly")) {
            lock.lockInterruptibly(lease > 0 ? lease : WATCHDOG, TimeUnit.MILLISECONDS);
        } else if (lease > 0) {
            lock.lock(lease, TimeUnit.MILLISECONDS);
        } else {
            lock.lock();
        }
    }

    private String tryLock(RLock lock, long wait, long lease) throws InterruptedException {
        long length = lease > 0 ? lease : WATCHDOG;
        return lock.tryLock(wait, length, TimeUnit.MILLISECONDS) ? "held" : "busy";
    }

    /** RFencedLock, which older versions do not have. */
    private String fenced(RLock lock, long lease) throws Exception {
        if (lease > 0) {
            Method method = lock.getClass().getMethod("lockAndGetToken", long.class, TimeUnit.class);
            return "" + method.invoke(lock, lease, TimeUnit.MILLISECONDS);
        }
        return "" + lock.getClass().getMethod("lockAndGetToken").invoke(lock);
    }

    /** Adds one under the lock, by two commands that only the lock keeps apart, so many times or until then. */
    private long count(RLock lock, String key, long times, long until, String[] words, int rest) throws Exception {
        long pause = Long.parseLong(words[rest]);
        long lease = Long.parseLong(words[rest + 1]);
        if (data == null) {
            data = new Data(options.text("data", options.url));
        }
        long done = 0;
        while (done < times && System.nanoTime() < until) {
            lock(lock, lease);
            try {
                String value = data.ask("GET", key);
                data.ask("SET", key, "" + (value == null ? 1 : Long.parseLong(value) + 1));
                data.ask("RPUSH", key + ":by", label);
            } finally {
                lock.unlock();
            }
            done++;
            TimeUnit.MICROSECONDS.sleep(pause);
        }
        return done;
    }

    private static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }
}
