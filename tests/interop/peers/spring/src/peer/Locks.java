package peer;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.time.Duration;
import java.util.Properties;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;

/** ShedLock's Redis provider (kind=shedlock, shedlock-safe) or Spring Integration's registry (registry, registry-pubsub). */
final class Locks {
    /** The library's own. */
    private static final long SIXTY_SECONDS = 60_000;

    /** One of the two is there. */
    final LockProvider provider;
    final RedisLockRegistry registry;
    private final String version;
    private final LettuceConnectionFactory factory;
    private final ThreadPoolTaskScheduler scheduler = new ThreadPoolTaskScheduler();

    Locks(Options options) throws IOException {
        URI uri = URI.create(options.url);
        factory = new LettuceConnectionFactory(new RedisStandaloneConfiguration(uri.getHost(), uri.getPort()));
        factory.afterPropertiesSet();
        factory.start();
        String kind = options.text("kind", "shedlock");
        boolean shed = kind.startsWith("shedlock");
        provider = shed ? new RedisLockProvider.Builder(factory).safeUpdate(kind.endsWith("-safe")).build() : null;
        registry = shed ? null : registry(options, kind);
        version = shed ? "shedlock " + shedlock() : "spring-integration " + spring();
    }

    /** Keys are registry:NAME. Renewed by the registry where there is a watchdog=. */
    private RedisLockRegistry registry(Options options, String kind) {
        Duration lease = Duration.ofMillis(options.number("watchdog", options.number("lease", SIXTY_SECONDS)));
        RedisLockRegistry registry = new RedisLockRegistry(factory, "registry", lease);
        if (kind.equals("registry-pubsub")) {
            registry.setRedisLockType(RedisLockRegistry.RedisLockType.PUB_SUB_LOCK);
        }
        if (options.has("retry")) {
            registry.setIdleBetweenTries(Duration.ofMillis(options.number("retry", 0)));
        }
        if (options.has("watchdog")) {
            scheduler.setDaemon(true);
            scheduler.initialize();
            registry.setRenewalTaskScheduler(scheduler);
        }
        return registry;
    }

    /** Ends the client, with all that it renews. */
    void close() {
        scheduler.shutdown();
        if (registry != null) {
            registry.destroy();
        }
        factory.destroy();
    }

    private static String shedlock() throws IOException {
        String place = "/META-INF/maven/net.javacrumbs.shedlock/shedlock-provider-redis-spring/pom.properties";
        try (InputStream file = RedisLockProvider.class.getResourceAsStream(place)) {
            Properties properties = new Properties();
            properties.load(file);
            return properties.getProperty("version");
        }
    }

    private static String spring() {
        return RedisLockRegistry.class.getPackage().getImplementationVersion();
    }

    /** What the library's own jar says. */
    String version() {
        return version;
    }
}
