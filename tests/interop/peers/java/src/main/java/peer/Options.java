package peer;

import java.util.HashMap;
import java.util.Map;

/** The command line: URL key=value... */
final class Options {
    final String url;
    private final Map<String, String> values = new HashMap<>();

    Options(String[] arguments) {
        url = arguments[0];
        for (int at = 1; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            values.put(pair[0], pair[1]);
        }
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    long number(String name, long otherwise) {
        return has(name) ? Long.parseLong(values.get(name)) : otherwise;
    }
}
