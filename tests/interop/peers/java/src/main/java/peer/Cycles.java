package peer;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/** The verb `cycles`, for the benchmarks: takes a lock and gives it back, and notes when that was. */
final class Cycles {
    /** What follows the verb: NAME MILLIS HOLD PAUSE LEASE FILE. */
    static long run(String[] words, Count.Take take, Count.Give give) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[1]));
        long hold = Long.parseLong(words[2]);
        long pause = Long.parseLong(words[3]);
        long lease = Long.parseLong(words[4]);
        ByteArrayOutputStream visits = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(visits);
        long done = 0;
        for (; System.nanoTime() < end; done++) {
            take.lock(lease);
            // On Linux this is the monotonic clock that all processes share.
            long entered = System.nanoTime();
            sleep(hold);
            long left = System.nanoTime();
            give.unlock();
            out.writeLong(Long.reverseBytes(entered));
            out.writeLong(Long.reverseBytes(left));
            sleep(pause);
        }
        if (!words[5].equals("-")) {
            Files.write(Path.of(words[5]), visits.toByteArray());
        }
        return done;
    }

    private static void sleep(long micros) throws InterruptedException {
        if (micros > 0) {
            TimeUnit.MICROSECONDS.sleep(micros);
        }
    }

    private Cycles() {}
}
