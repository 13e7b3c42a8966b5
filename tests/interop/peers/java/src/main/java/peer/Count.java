package peer;

import java.io.IOException;
import java.util.concurrent.TimeUnit;

/** The verbs `count` and `contend`: adds one under a lock, by two commands that only the lock keeps apart. */
final class Count {
    private final Options options;
    private final String label;
    private Data data;

    /** Takes the lock for so many milliseconds. */
    interface Take {
        void lock(long lease) throws Exception;
    }

    /** Gives it back. */
    interface Give {
        void unlock() throws Exception;
    }

    Count(Options options, String label) {
        this.options = options;
        this.label = label;
    }

    /** What follows the verb: NAME KEY TIMES PAUSE LEASE, or NAME KEY MILLIS PAUSE LEASE. */
    long run(String verb, String[] words, Take take, Give give) throws Exception {
        long bound = Long.parseLong(words[2]);
        long pause = Long.parseLong(words[3]);
        long lease = Long.parseLong(words[4]);
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(bound);
        if (data == null) {
            data = new Data(options.text("data", options.url));
        }
        long done = 0;
        while (verb.equals("count") ? done < bound : System.nanoTime() < until) {
            take.lock(lease);
            try {
                add(words[1]);
            } finally {
                give.unlock();
            }
            done++;
            TimeUnit.MICROSECONDS.sleep(pause);
        }
        return done;
    }

    private void add(String key) throws IOException {
        String value = data.ask("GET", key);
        data.ask("SET", key, "" + (value == null ? 1 : Long.parseLong(value) + 1));
        data.ask("RPUSH", key + ":by", label);
    }
}
