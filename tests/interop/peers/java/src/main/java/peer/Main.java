package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/** A library behind the line protocol of the interop suite: see the README two folders up. */
public final class Main {
    private static final PrintStream OUT = System.out;

    public static void main(String[] arguments) throws Exception {
        // Nothing but the protocol on standard output, whatever libraries want to say.
        System.setOut(System.err);
        Options options = new Options(arguments);
        Locks locks = new Locks(options);
        say("ready " + locks.version());

        Map<String, Worker> workers = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            workers.computeIfAbsent(words[0], name -> new Worker(name, locks, options)).give(words);
        }
        // At once, and without releasing anything: whoever closes our input may want just that.
        Runtime.getRuntime().halt(0);
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
