package peer;

import java.net.URI;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;

/**
 * How Redisson is to reach its servers: its defaults, but for fewer threads and connections than a service has, unless
 * there is `usual=`.
 */
final class Settings {
    private static final int CONNECTIONS = 16;
    private static final int IDLE = 4;
    private static final int CHANNELS = 50;

    static Config of(Options options) {
        switch (options.text("topology", "single")) {
            case "sentinel":
                return sentinel(options);
            case "cluster":
                return cluster(options);
            default:
                return single(options, options.url);
        }
    }

    static Config single(Options options, String url) {
        Config config = base(options);
        SingleServerConfig server = config.useSingleServer().setAddress(address(url));
        if (options.has("usual")) {
            return config;
        }
        server.setConnectionPoolSize(CONNECTIONS).setConnectionMinimumIdleSize(IDLE);
        server.setSubscriptionConnectionPoolSize(IDLE).setSubscriptionConnectionMinimumIdleSize(1);
        server.setSubscriptionsPerConnection(CHANNELS);
        if (options.has("timeout")) {
            server.setTimeout((int) options.number("timeout", 0));
        }
        return config;
    }

    /** redis+sentinel://host:port,host:port/master */
    private static Config sentinel(Options options) {
        Config config = base(options);
        String[] parts = options.url.substring(options.url.indexOf("//") + 2).split("/");
        SentinelServersConfig servers = config.useSentinelServers().setMasterName(parts[1]);
        for (String host : parts[0].split(",")) {
            servers.addSentinelAddress("redis://" + host);
        }
        replicated(servers, options);
        return config;
    }

    /** redis+cluster://host:port,host:port */
    private static Config cluster(Options options) {
        Config config = base(options);
        ClusterServersConfig servers = config.useClusterServers();
        for (String host : options.url.substring(options.url.indexOf("//") + 2).split(",")) {
            servers.addNodeAddress("redis://" + host);
        }
        replicated(servers, options);
        if (options.has("sharded")) {
            sharded(servers, options.text("sharded", ""));
        }
        return config;
    }

    /** AUTO, ON or OFF. There is none before 3.29. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void sharded(ClusterServersConfig servers, String mode) {
        try {
            Class kind = Class.forName("org.redisson.config.ShardedSubscriptionMode");
            servers.getClass().getMethod("setShardedSubscriptionMode", kind).invoke(servers, Enum.valueOf(kind, mode));
        } catch (ReflectiveOperationException none) {
            throw new UnsupportedOperationException("unsupported");
        }
    }

    private static Config base(Options options) {
        Config config = new Config();
        if (!options.has("usual")) {
            config.setNettyThreads(4).setThreads(4);
        }
        // No lock uses it; the one that 3.12 takes without being asked does not start on Java 17.
        config.setCodec(StringCodec.INSTANCE);
        if (options.has("watchdog")) {
            config.setLockWatchdogTimeout(options.number("watchdog", 0));
        }
        return config;
    }

    private static void replicated(BaseMasterSlaveServersConfig<?> config, Options options) {
        if (options.has("attempts")) {
            config.setRetryAttempts((int) options.number("attempts", 0));
        }
        config.setMasterConnectionPoolSize(CONNECTIONS).setMasterConnectionMinimumIdleSize(IDLE);
        config.setSlaveConnectionPoolSize(CONNECTIONS).setSlaveConnectionMinimumIdleSize(1);
        config.setSubscriptionConnectionPoolSize(IDLE).setSubscriptionConnectionMinimumIdleSize(1);
        config.setSubscriptionsPerConnection(CHANNELS);
    }

    private static String address(String url) {
        URI uri = URI.create(url);
        return "redis://" + uri.getHost() + ":" + uri.getPort();
    }

    private Settings() {}
}
