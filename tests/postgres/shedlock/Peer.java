import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Scanner;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;

/**
 * ShedLock on a PostgreSQL database, told by lines of standard input: `try NAME MOST LEAST`, `unlock NAME`,
 * `extend NAME MOST`, and `add NAME FILE TIMES`, which increments the number in a file under the lock.
 */
final class Peer {
    public static void main(String[] arguments) throws Exception {
        DriverManagerDataSource source = new DriverManagerDataSource(arguments[0], "postgres", "");
        LockProvider provider = new JdbcTemplateLockProvider(
            JdbcTemplateLockProvider.Configuration.builder()
                .withJdbcTemplate(new JdbcTemplate(source))
                .usingDbTime()
                .build());
        Map<String, SimpleLock> held = new HashMap<>();
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            String name = words[1];
            switch (words[0]) {
                case "try":
                    Optional<SimpleLock> lock = take(provider, name, Long.parseLong(words[2]), Long.parseLong(words[3]));
                    lock.ifPresent(it -> held.put(name, it));
                    answer(lock.isPresent() ? "held" : "busy");
                    break;
                case "unlock":
                    held.remove(name).unlock();
                    answer("done");
                    break;
                case "extend":
                    Optional<SimpleLock> longer = held.remove(name).extend(Duration.ofMillis(Long.parseLong(words[2])), Duration.ZERO);
                    longer.ifPresent(it -> held.put(name, it));
                    answer(longer.isPresent() ? "extended" : "gone");
                    break;
                default:
                    add(provider, name, Path.of(words[2]), Integer.parseInt(words[3]));
                    answer("done");
            }
        }
    }

    /** A string of JSON. */
    private static void answer(String word) {
        System.out.println('"' + word + '"');
    }

    private static Optional<SimpleLock> take(LockProvider provider, String name, long most, long least) {
        return provider.lock(new LockConfiguration(Instant.now(), name, Duration.ofMillis(most), Duration.ofMillis(least)));
    }

    private static void add(LockProvider provider, String name, Path file, int times) throws Exception {
        for (int done = 0; done < times; ) {
            Optional<SimpleLock> lock = take(provider, name, 30_000, 0);
            if (lock.isEmpty()) {
                Thread.sleep(2);
                continue;
            }
            int number = Integer.parseInt(Files.readString(file).trim());
            Thread.sleep(1);
            Files.writeString(file, "" + (number + 1));
            lock.get().unlock();
            done++;
        }
    }
}
