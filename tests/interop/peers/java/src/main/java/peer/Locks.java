package peer;

import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;

/** Locks of the kind that the command line asks for. */
final class Locks {
    private final String kind;
    /** Whether several locks as one are of RFencedLocks. */
    private final boolean fenced;
    /** More than one for a RedissonRedLock over independent servers. */
    private final List<RedissonClient> clients = new ArrayList<>();

    Locks(Options options) {
        kind = options.text("kind", "lock");
        fenced = options.text("members", "lock").equals("fenced");
        if (options.text("topology", "single").equals("independent")) {
            for (String url : options.url.split(",")) {
                clients.add(Redisson.create(Settings.single(options, url)));
            }
        } else {
            clients.add(Redisson.create(Settings.of(options)));
        }
    }

    /** A kind of several locks has the names of all of them, `a,b,c`, or one name on all servers. */
    RLock named(String name) {
        RedissonClient first = clients.get(0);
        switch (kind) {
            case "lock":
                return first.getLock(name);
            case "fair":
                return first.getFairLock(name);
            case "fenced":
                return later(first, "getFencedLock", name);
            case "non-reentrant":
                return later(first, "getNonReentrantLock", name);
            case "spin":
                return later(first, "getSpinLock", name);
            case "write":
                return first.getReadWriteLock(name).writeLock();
            case "read-write":
                return half(first, name);
            case "multi":
                return new RedissonMultiLock(members(name));
            case "red":
                return new RedissonRedLock(members(name));
            default:
                throw new IllegalArgumentException("there is no kind " + kind);
        }
    }

    /** Whether it is no lock, but a semaphore. */
    boolean isPermits() {
        return kind.equals("permits");
    }

    RPermitExpirableSemaphore permits(String name) {
        return clients.get(0).getPermitExpirableSemaphore(name);
    }

    /** `read/NAME` or `write/NAME`. */
    private static RLock half(RedissonClient client, String name) {
        String[] parts = name.split("/", 2);
        RReadWriteLock both = client.getReadWriteLock(parts[1]);
        return parts[0].equals("read") ? both.readLock() : both.writeLock();
    }

    private RLock[] members(String names) {
        List<RLock> locks = new ArrayList<>();
        for (String name : names.split(",")) {
            for (RedissonClient client : clients) {
                locks.add(fenced ? later(client, "getFencedLock", name) : client.getLock(name));
            }
        }
        return locks.toArray(new RLock[0]);
    }

    /** What older versions do not have: getSpinLock before 3.15, getFencedLock before 3.19, getNonReentrantLock before 4.4. */
    private static RLock later(RedissonClient client, String factory, String name) {
        try {
            return (RLock) RedissonClient.class.getMethod(factory, String.class).invoke(client, name);
        } catch (ReflectiveOperationException none) {
            throw new UnsupportedOperationException("unsupported");
        }
    }

    /** Ends the clients, with all that they renew. */
    void close() {
        clients.forEach(client -> client.shutdown(0, 1, TimeUnit.SECONDS));
    }

    /** What the library's own jar says. */
    String version() throws Exception {
        String place = "/META-INF/maven/org.redisson/redisson/pom.properties";
        try (InputStream file = Redisson.class.getResourceAsStream(place)) {
            Properties properties = new Properties();
            properties.load(file);
            return "redisson " + properties.getProperty("version");
        }
    }
}
