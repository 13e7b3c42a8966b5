package peer;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;

/** A plain connection to a server, for what the lock protects: not by Redisson, which may read from replicas. */
final class Data {
    private final InputStream in;
    private final OutputStream out;

    Data(String url) throws IOException {
        URI uri = URI.create(url);
        Socket socket = new Socket(uri.getHost(), uri.getPort());
        socket.setTcpNoDelay(true);
        in = new BufferedInputStream(socket.getInputStream());
        out = socket.getOutputStream();
    }

    /** One command and its answer: a text, or null where there is none. */
    String ask(String... words) throws IOException {
        ByteArrayOutputStream request = new ByteArrayOutputStream();
        write(request, "*" + words.length);
        for (String word : words) {
            write(request, "$" + word.getBytes(StandardCharsets.UTF_8).length);
            write(request, word);
        }
        out.write(request.toByteArray());
        String line = line();
        if (line.startsWith("-")) {
            throw new IOException(line);
        }
        if (!line.startsWith("$")) {
            return line.substring(1);
        }
        return line.equals("$-1") ? null : line();
    }

    private static void write(ByteArrayOutputStream request, String word) throws IOException {
        request.write(word.getBytes(StandardCharsets.UTF_8));
        request.write("\r\n".getBytes(StandardCharsets.US_ASCII));
    }

    private String line() throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int next = in.read(); next != '\n'; next = in.read()) {
            if (next < 0) {
                throw new IOException("the server has closed the connection");
            }
            line.write(next);
        }
        return line.toString(StandardCharsets.UTF_8).trim();
    }
}
