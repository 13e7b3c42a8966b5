package peer;

import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.springframework.integration.support.locks.DistributedLock;

/** What one worker can be told to do. */
final class Verbs {
    private static final long FOR_EVER = Long.MAX_VALUE / 2_000_000;

    private final Locks locks;
    private final Options options;
    private final Map<String, SimpleLock> held = new HashMap<>();
    private final Count count;
    /** ShedLock's lockAtLeastFor: who releases sooner leaves the lock where it is until then. */
    private final Duration atLeast;

    Verbs(Locks locks, Options options) {
        this.locks = locks;
        this.options = options;
        count = new Count(options, options.text("kind", "shedlock"));
        atLeast = Duration.ofMillis(options.number("at-least", 0));
    }

    String run(String verb, String[] words) throws Exception {
        String name = words.length > 0 ? words[0] : "";
        switch (verb) {
            case "lock":
                lock(name, number(words, 1));
                return "" + now();
            case "try":
                return (tryLock(name, number(words, 1), number(words, 2)) ? "held " : "busy ") + now();
            case "unlock":
                unlock(name);
                return "";
            case "extend":
                extend(name, Duration.ofMillis(number(words, 1)));
                return "";
            case "state":
                return "locked=? holds=? ttl=?";
            case "count":
            case "contend":
                return "" + count.run(verb, words, lease -> lock(name, lease), () -> unlock(name));
            default:
                throw new UnsupportedOperationException("unsupported");
        }
    }

    private static long number(String[] words, int at) {
        return Long.parseLong(words[at]);
    }

    private void lock(String name, long lease) throws Exception {
        if (locks.provider != null) {
            tryLock(name, FOR_EVER, lease);
        } else if (lease > 0) {
            lockOf(name).lock(Duration.ofMillis(lease));
        } else {
            lockOf(name).lock();
        }
    }

    /** ShedLock never waits: who has not got it skips its job. So this asks again, every retry= (50) milliseconds. */
    private boolean tryLock(String name, long wait, long lease) throws Exception {
        if (locks.provider == null) {
            return registryTry(lockOf(name), wait, lease);
        }
        Duration atMost = Duration.ofMillis(lease > 0 ? lease : options.number("lease", 30_000));
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(wait);
        while (true) {
            LockConfiguration configuration = new LockConfiguration(Instant.now(), name, atMost, atLeast);
            Optional<SimpleLock> lock = locks.provider.lock(configuration);
            lock.ifPresent(mine -> held.put(name, mine));
            if (lock.isPresent() || System.nanoTime() >= until) {
                return lock.isPresent();
            }
            TimeUnit.MILLISECONDS.sleep(options.number("retry", 50));
        }
    }

    private static boolean registryTry(DistributedLock lock, long wait, long lease) throws InterruptedException {
        if (lease > 0) {
            return lock.tryLock(Duration.ofMillis(wait), Duration.ofMillis(lease));
        }
        return lock.tryLock(wait, TimeUnit.MILLISECONDS);
    }

    /** ShedLock releases nothing that it did not give: there is nothing to ask without a lock of its own. */
    private void unlock(String name) {
        if (locks.provider == null) {
            lockOf(name).unlock();
            return;
        }
        mine(name).unlock();
        held.remove(name);
    }

    private void extend(String name, Duration lease) {
        if (locks.provider == null) {
            locks.registry.renewLock(name, lease);
            return;
        }
        Optional<SimpleLock> extended = mine(name).extend(lease, atLeast);
        held.remove(name);
        held.put(name, extended.orElseThrow(() -> new IllegalStateException("not extended")));
    }

    private SimpleLock mine(String name) {
        SimpleLock lock = held.get(name);
        if (lock == null) {
            throw new UnsupportedOperationException("unsupported");
        }
        return lock;
    }

    private DistributedLock lockOf(String name) {
        return locks.registry.obtain(name);
    }

    private static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }
}
