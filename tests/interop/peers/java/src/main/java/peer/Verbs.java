package peer;

import java.lang.reflect.Method;
import java.time.Instant;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RExpirable;
import org.redisson.api.RLock;
import org.redisson.api.RObject;

/** What one worker can be told to do. */
final class Verbs {
    private static final long WATCHDOG = -1;

    private final Locks locks;
    private final Options options;
    private final Count count;
    private final Permits permits;

    Verbs(Locks locks, Options options) {
        this.locks = locks;
        this.options = options;
        count = new Count(options, "redisson");
        permits = new Permits(locks);
    }

    String run(String verb, String[] words) throws Exception {
        if (locks.isPermits()) {
            return permits.run(verb, words);
        }
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
            case "expire":
                // The same.
                return "" + ((RExpirable) lock).expire(Long.parseLong(words[1]), TimeUnit.MILLISECONDS);
            case "state":
                return "locked=" + lock.isLocked() + " holds=" + lock.getHoldCount() + " ttl=" + lock.remainTimeToLive();
            case "fenced":
                return fenced(lock, Long.parseLong(words[1]));
            case "token":
                return "" + lock.getClass().getMethod("getToken").invoke(lock);
            case "count":
            case "contend":
                return "" + count.run(verb, words, lease -> lock(lock, lease), lock::unlock);
            case "cycles":
                return "" + Cycles.run(words, lease -> lock(lock, lease), lock::unlock);
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

    static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }
}
