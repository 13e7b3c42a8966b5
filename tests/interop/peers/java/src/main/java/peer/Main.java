package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/** A library behind the line protocol of the interop suite: see the README two folders up. */
public final class Main {
    private static final PrintStream OUT = System.out;

    private Options options;
    private Locks locks;
    private Map<String, Worker> workers;

    public static void main(String[] arguments) throws Exception {
        // Nothing but the protocol on standard output, whatever libraries want to say.
        System.setOut(System.err);
        Main main = new Main();
        main.open(arguments);
        say("ready " + main.locks.version());

        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            main.obey(line.trim().split(" "));
        }
        // At once, and without releasing anything: a test may close our input to see just that.
        Runtime.getRuntime().halt(0);
    }

    private void obey(String[] words) {
        switch (words[1]) {
            case "open":
                say(words[0] + " " + opened(Arrays.copyOfRange(words, 2, words.length)));
                return;
            case "close":
                close();
                say(words[0] + " ok");
                return;
            default:
                workers.computeIfAbsent(words[0], name -> new Worker(name, locks, options)).give(words);
        }
    }

    private String opened(String[] arguments) {
        try {
            open(arguments);
            return "ok " + locks.version();
        } catch (Exception problem) {
            return Worker.error(problem);
        }
    }

    private void open(String[] arguments) throws Exception {
        options = new Options(arguments);
        locks = new Locks(options);
        workers = new HashMap<>();
    }

    /** Not waited for: some versions take seconds. */
    private void close() {
        workers.values().forEach(Worker::end);
        Thread closing = new Thread(locks::close, "closing");
        closing.setDaemon(true);
        closing.start();
    }

    /** One line, whole and at once. */
    static void say(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private Main() {}
}
