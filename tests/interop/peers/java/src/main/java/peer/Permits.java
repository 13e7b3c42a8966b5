package peer;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RPermitExpirableSemaphore;

/** What one worker holds of RPermitExpirableSemaphores. */
final class Permits {
    private final Locks locks;
    private final Map<String, Deque<String>> held = new HashMap<>();

    Permits(Locks locks) {
        this.locks = locks;
    }

    String run(String verb, String[] words) throws Exception {
        String name = words[0];
        RPermitExpirableSemaphore permits = locks.permits(name);
        switch (verb) {
            case "lock":
                acquire(name, Long.parseLong(words[1]));
                return "" + Verbs.now();
            case "try":
                return tryAcquire(name, Long.parseLong(words[1]), Long.parseLong(words[2])) + " " + Verbs.now();
            case "unlock":
                permits.release(held(name).pop());
                return "";
            case "extend":
                String id = words.length > 2 ? words[2] : held(name).peek();
                permits.updateLeaseTime(id, Long.parseLong(words[1]), TimeUnit.MILLISECONDS);
                return "";
            case "ids":
                return String.join(" ", held(name));
            case "release":
                return "" + permits.tryRelease(words[1]);
            case "permits":
                return "" + permits.trySetPermits(Integer.parseInt(words[1]));
            case "add":
                permits.addPermits(Integer.parseInt(words[1]));
                return "";
            case "limit":
                // Not in the oldest versions, like the two below.
                permits.getClass().getMethod("setPermits", int.class).invoke(permits, Integer.parseInt(words[1]));
                return "";
            case "state":
                return "free=" + permits.availablePermits() + " taken=" + number(permits, "acquiredPermits")
                        + " limit=" + number(permits, "getPermits");
            case "cycles":
                return "" + Cycles.run(words, lease -> acquire(name, lease), () -> permits.release(held(name).pop()));
            default:
                throw new UnsupportedOperationException("unsupported");
        }
    }

    private static Object number(RPermitExpirableSemaphore permits, String method) throws ReflectiveOperationException {
        return permits.getClass().getMethod(method).invoke(permits);
    }

    private Deque<String> held(String name) {
        return held.computeIfAbsent(name, none -> new ArrayDeque<>());
    }

    private void acquire(String name, long lease) throws InterruptedException {
        RPermitExpirableSemaphore permits = locks.permits(name);
        held(name).push(lease > 0 ? permits.acquire(lease, TimeUnit.MILLISECONDS) : permits.acquire());
    }

    private String tryAcquire(String name, long wait, long lease) throws InterruptedException {
        long length = lease > 0 ? lease : -1;
        String id = locks.permits(name).tryAcquire(wait, length, TimeUnit.MILLISECONDS);
        if (id == null) {
            return "busy";
        }
        held(name).push(id);
        return "held";
    }
}
