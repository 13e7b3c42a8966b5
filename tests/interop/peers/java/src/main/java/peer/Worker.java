package peer;

import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** A thread of one name, which does its lines one after the other. To a library it may be an owner. */
final class Worker implements Runnable {
    private final String name;
    private final Verbs verbs;
    private final BlockingQueue<String[]> lines = new LinkedBlockingQueue<>();
    private final Thread thread;

    Worker(String name, Locks locks, Options options) {
        this.name = name;
        verbs = new Verbs(locks, options);
        thread = new Thread(this, name);
        thread.setDaemon(true);
        thread.start();
    }

    void give(String[] words) {
        // The one line that is not for the worker itself: it may be waiting for a lock.
        if (words[1].equals("interrupt")) {
            thread.interrupt();
        } else {
            lines.add(words);
        }
    }

    /** Behind what it was given. */
    void end() {
        lines.add(new String[0]);
    }

    @Override
    public void run() {
        while (true) {
            try {
                String[] words = lines.take();
                if (words.length == 0) {
                    return;
                }
                Main.say(name + " " + answer(words));
            } catch (InterruptedException meantForTheWait) {
                // It came too late: there is nothing to interrupt.
            }
        }
    }

    private String answer(String[] words) {
        try {
            String said = verbs.run(words[1], Arrays.copyOfRange(words, 2, words.length));
            return ("ok " + said).trim();
        } catch (UnsupportedOperationException unsupported) {
            return "error unsupported";
        } catch (InvocationTargetException called) {
            return error(called.getCause());
        } catch (Throwable problem) {
            return error(problem);
        }
    }

    static String error(Throwable problem) {
        return "error " + String.valueOf(problem).replaceAll("\\s+", " ");
    }
}
