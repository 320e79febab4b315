package relaax.rlx;

import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import relaax.rlx.RlxException.Meaning;
import relaax.rlx.Wire.Message;
import relaax.rlx.Wire.Part;

/**
 * A client of RLX, version 1 (protocol/RLX.md): it connects N environments to their agent. Use it from one thread. It encodes Protobuf
 * itself and needs only the standard library.
 *
 * <p>Observations and actions are arrays of leaves; a leaf is a primitive array with the numbers of all environments, in
 * their order: float[] for FLOAT32, long[] for a discrete, and so on (see {@link Space.Dtype}).
 */
public final class Client implements AutoCloseable {
    /** The client's version. */
    public static final String VERSION = "1.0.0";

    private static final int HELLO = 1, INIT = 2, STEP = 3, RESET = 4, METRICS = 5, PING = 6, PONG = 7, BYE = 8;
    private static final int WELCOME = 1, ACTIONS = 2, RETURNS = 3, ERROR = 4, FINISHED = 5;
    private static final int UNSUPPORTED_SPACE = 6;
    private static final int HANDSHAKE_BYTES = 65536, SLICE = 65536;
    private static final String SPEAKS_GRPC = "this port speaks gRPC, like the ports of parameter and replay servers: "
        + "connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)";
    /** What a client may ask for, and its field of Config: fields of hello from 15 on, of welcome from 6 on. */
    private static final String[][] CAPABILITIES = {{"environments out of step", "outOfStep"},
        {"actions of the client", "chosenActions"}, {"parameters of environments", "environmentParameters"}};
    /** The start of a gRPC server's stream, after 3 bytes. No RLX payload begins with a zero byte. */
    private static final byte[] SETTINGS = {4, 0, 0, 0, 0, 0};

    /** The autoreset mode of an environment: how its next episode begins. */
    public enum Autoreset { DISABLED, SAME_STEP, NEXT_STEP }

    /** Whether the agent learns from this client, or only acts. */
    public enum Mode { TRAIN, EXPLOIT }

    /** A whole episode, as the client counts it. */
    public record Episode(int environment, double episodeReturn, int length) {}

    /** The configuration of a client. Fields that are not set have defaults. */
    public static final class Config {
        /** HOST:PORT, or several. After each failure the client tries the next one. */
        public List<String> addresses = List.of();
        public Space observation;
        public Space action;
        /** The number of environments, N. */
        public int environments = 1;
        /** One mode for all environments, or N. */
        public List<Autoreset> autoreset = List.of(Autoreset.DISABLED);
        public Mode mode = Mode.TRAIN;
        public String token = "";
        public String environment = "";
        public String host = "";
        public String sessionId = "";
        public int frameSkip = 1;
        public boolean reportsEpisodes;
        /** Whether calls may mark environments as idle. The server and its algorithm must support it. */
        public boolean outOfStep;
        /** Whether environments may take other actions than the agent's. The server and its algorithm must support it. */
        public boolean chosenActions;
        /** Whether the server may set parameters of the environments. It must support it. */
        public boolean environmentParameters;
        /** How long to retry after a failure, in seconds. Below 0: do not retry. */
        public double retrySeconds = 300;
        /** Called before each wait with the reason and the seconds. */
        public BiConsumer<RlxException, Double> onRetry =
            (reason, seconds) -> System.err.printf(Locale.ROOT, "RLX: %s; trying again in %.1f s%n", reason.getMessage(), seconds);
        /** The TLS context; null: no TLS. */
        public SSLContext tls;
    }

    /** The outcome of the last actions. A mask may be null: all false. */
    public static final class Outcome {
        /** N rewards. */
        public double[] reward;
        /** Not used by reset. */
        public Object[] observation;
        /** Not used by reset. */
        public boolean[] terminated;
        public boolean[] truncated;
        /** The environments that want no action. Requires outOfStep. Not used by reset. */
        public boolean[] idle;
        /** Rows of ended episodes, with SAME_STEP. Required if an episode was truncated, also in reset. */
        public Object[] finalObservation;
        public List<Episode> episodes = List.of();
        /** The environments that took another action than the agent's. Requires chosenActions. */
        public boolean[] chosen;
        /** The actions of these environments, in the form of those that calls return. Other rows are ignored. */
        public Object[] action;
    }

    private final Config config;
    private final int n;
    private final List<Space.Leaf> observation, action;
    private final Set<String> names = new HashSet<>();
    private Socket tcp, socket; // the same object without TLS
    private InputStream in;
    private boolean playing, answered, gone;
    private RlxException lost, end;
    private int address, failures;
    private long since, until, limit, most, nameBytes, nameLimit;
    private double silence;
    private byte[] buffer = new byte[HANDSHAKE_BYTES];
    private int from, to;
    private Part scalars = new Part();
    private boolean[] away, awayNext, first, hidden, hiddenFinal, hiddenAction, cut;
    private String session, algorithm = "";
    private Object[] actions;
    private double[] returns, parameters;
    private List<String> parameterNames = List.of();
    private boolean parametersAreRead, chose;

    /** Make a client. It does not connect yet. */
    public Client(Config config) {
        this.config = config;
        n = config.environments;
        observation = config.observation.leaves();
        action = config.action.leaves();
        session = config.sessionId;
        if (n < 1 || n > 65536 || config.autoreset.size() != 1 && config.autoreset.size() != n) {
            throw new IllegalArgumentException(n + " environments: use 1 to 65536, and one autoreset mode for all or for each");
        }
        if (config.addresses.isEmpty() || !config.addresses.stream().allMatch(one -> one.matches("\\S+:\\d{1,5}"))) {
            throw new IllegalArgumentException("the addresses " + config.addresses + ": use HOST:PORT, or several");
        }
        away = new boolean[n];
        awayNext = new boolean[n];
        first = new boolean[n];
        hidden = new boolean[n];
        hiddenFinal = new boolean[n];
        hiddenAction = new boolean[n];
        cut = new boolean[n];
        limit = HANDSHAKE_BYTES;
        framed(HELLO, hello(true));
    }

    /** The session id of the latest welcome. */
    public String session() {
        return session;
    }

    /** The name of the algorithm that acts. */
    public String algorithm() {
        return algorithm;
    }

    private Autoreset habit(int i) {
        return config.autoreset.get(config.autoreset.size() == 1 ? 0 : i);
    }

    /** Connect now. Otherwise the first init connects. */
    public void connect() throws RlxException {
        while (socket == null) {
            if (end != null) throw end;
            RlxException reason = lost;
            lost = null;
            if (reason != null) backOff(reason);
            try {
                attempt();
            } catch (RlxException e) {
                if (e.meaning != Meaning.INTERRUPTED) throw e;
                lost = e;
            }
        }
    }

    /**
     * Return the server's parameters for the next episodes: N values for each name. Connects if necessary. Read them before an
     * environment begins an episode. Requires environmentParameters.
     */
    public Map<String, double[]> parameters() throws RlxException {
        if (!config.environmentParameters) throw new IllegalArgumentException("there are no parameters: set environmentParameters to true");
        connect();
        parametersAreRead = true;
        Map<String, double[]> all = new LinkedHashMap<>();
        for (String name : parameterNames) {
            double[] values = new double[n];
            for (int i = 0; i < n; i++) values[i] = parameters[i * parameterNames.size() + all.size()];
            all.put(name, values);
        }
        return all;
    }

    /** Begin an episode in every environment and return the first actions. {@code partial}: null, or true where an episode continues. */
    public Object[] init(Object[] observation, boolean[] partial) throws RlxException {
        return init(observation, partial, null);
    }

    /** As above. {@code idle}: null, or true where an environment is away and its observation void. Requires outOfStep. */
    public Object[] init(Object[] observation, boolean[] partial, boolean[] idle) throws RlxException {
        if (playing) throw new IllegalArgumentException("an episode is in progress: call reset first");
        if (partial != null && partial.length != n) throw new IllegalArgumentException("partial has " + n + " entries");
        checkMask("idle", idle, config.outOfStep, "outOfStep");
        boolean[] absent = idle == null ? new boolean[n] : idle.clone();
        boolean[] all = new boolean[n];
        Arrays.fill(all, true);
        List<byte[]> seen = pack(this.observation, observation, absent);
        while (true) {
            connect();
            boolean read = parametersAreRead || parameterNames.isEmpty();
            Part content = new Part().leaves(1, this.observation, seen, n).mask(2, read ? partial : all).mask(3, absent);
            try {
                hear(0);
                ask(INIT, content, ACTIONS);
                away = absent;
                return actions;
            } catch (RlxException e) {
                if (e.meaning != Meaning.INTERRUPTED) throw e;
            }
        }
    }

    /**
     * Send an outcome and return the next actions. The client sets `first`: the reward of an environment that was between
     * two episodes is void. The rows of idle environments are void, except those of an episode that ends.
     */
    public Object[] step(Outcome o) throws RlxException {
        check(o, true);
        Part content = new Part().doubles(1, o.reward).leaves(2, observation, pack(observation, o.observation, hidden), n);
        content.mask(3, o.terminated).mask(4, cut);
        if (o.finalObservation != null) content.leaves(5, observation, pack(observation, o.finalObservation, hiddenFinal), n);
        content.mask(6, first).episodes(7, o.episodes).mask(8, o.idle);
        addChosen(content, 9, o);
        hear(0);
        ask(STEP, content, ACTIONS);
        away = awayNext.clone();
        return actions;
    }

    /** End the episode of every environment and return their returns. */
    public double[] reset(Outcome o) throws RlxException {
        check(o, false);
        Part content = new Part().doubles(1, o.reward).mask(2, cut);
        if (o.finalObservation != null) content.leaves(3, observation, pack(observation, o.finalObservation, null), n);
        content.episodes(4, o.episodes);
        addChosen(content, 5, o);
        hear(0);
        ask(RESET, content, RETURNS);
        return returns;
    }

    /**
     * Add a scalar to the next message, with a valid name ("a b" becomes a_b). Returns false if it is dropped: there is no
     * connection, or it exceeds the server's limits.
     */
    public boolean metric(String name, double value) {
        if (name.isEmpty() || !(Math.abs(value) <= 1e30)) {
            throw new IllegalArgumentException("metric '" + name + "', " + value + ": use a name and a value from -1e30 to 1e30");
        }
        String form = name.replaceAll("[^A-Za-z0-9_./-]|^/", "_");
        if (socket == null || form.length() > nameBytes || scalars.size() > 65536 || !names.contains(form) && names.size() >= nameLimit) {
            return false;
        }
        names.add(form);
        Part scalar = new Part().text(1, form).varint(2 << 3 | 1).fixed(value);
        scalars.writeBytes(new Part().part(1, scalar).frame(METRICS));
        return true;
    }

    /** Send a ping, for environments that are slower than the server's idle timeout. */
    public void alive() throws RlxException {
        ask(PING, new Part().integer(1, 1), PONG);
    }

    /** Send bye and disconnect. */
    @Override
    public void close() {
        try {
            if (socket == null) return;
            silence = 1;
            send(BYE, new Part());
            socket.shutdownOutput();
            socket.setSoTimeout(500);
            until = System.nanoTime() + 1_000_000_000;
            while (System.nanoTime() < until && in.read(buffer) > 0) {}
        } catch (RlxException | IOException | UnsupportedOperationException e) {
            // the connection is closing
        } finally {
            hangUp();
        }
    }

    /** The current address. */
    private String where() {
        return config.addresses.get(address % config.addresses.size());
    }

    private void hangUp() {
        try {
            if (socket != null) socket.close();
            if (tcp != null) tcp.close();
        } catch (IOException e) {
            // the connection is closing
        }
        tcp = socket = null;
        playing = gone = false;
        from = to = 0;
        scalars.reset();
    }

    private RlxException interrupted(long code, String sentence, double retryAfter) {
        hangUp();
        lost = new RlxException(Meaning.INTERRUPTED, code, sentence, 0, retryAfter);
        return lost;
    }

    /** Disconnect after a mistake of the server. Reconnect only if an `init` was answered on this connection (section 9). */
    private RlxException mistake(int code, String what) {
        sayBye(what);
        if (answered || gone) return interrupted(code, "the server's mistake: " + what, 0);
        hangUp();
        return new RlxException(Meaning.FAILED, code, where() + ": the server's mistake: " + what + ": is it an RLX server?", 0, 0);
    }

    private void sayBye(String reason) {
        try {
            socket.getOutputStream().write(new Part().text(1, reason).frame(BYE));
        } catch (IOException e) {
            // the connection is closed next
        }
    }

    private byte[] framed(int kind, Part content) {
        byte[] frame = content.frame(kind);
        if (frame.length - 4 <= limit) return frame;
        throw new IllegalArgumentException("a message of " + (frame.length - 4) + " bytes; the server accepts at most " + limit);
    }

    /** Write the pending scalars and a message in one call. */
    private void send(int kind, Part content) throws RlxException {
        if (socket == null) throw end != null ? end : lost != null ? lost : interrupted(0, "there is no connection", 0);
        Part data = new Part();
        byte[] frame = framed(kind, content);
        data.writeBytes(scalars.toByteArray());
        data.writeBytes(frame);
        scalars.reset();
        write(data.toByteArray());
    }

    private void write(byte[] data) throws RlxException {
        try {
            // the system buffers 16 KiB at once, because the server has answered all earlier messages
            if (data.length <= 16384) socket.getOutputStream().write(data);
            else for (int at = 0; at < data.length; at += SLICE) writeSlice(data, at);
        } catch (IOException e) { // the server may have sent the reason
            until = System.nanoTime() + 500_000_000;
            gone = true;
            patience(0.5);
            hear(FINISHED);
        }
    }

    /** Write a part of a long message. If the server does not receive it in time, the connection is closed, which ends the write. */
    private void writeSlice(byte[] data, int at) throws IOException {
        Socket slow = tcp;
        CompletableFuture<Void> written = new CompletableFuture<>();
        written.orTimeout((long) (1000 * silence), TimeUnit.MILLISECONDS).exceptionally(late -> {
            try {
                slow.close();
            } catch (IOException e) {
                // the connection is lost already
            }
            return null;
        });
        try {
            socket.getOutputStream().write(data, at, Math.min(SLICE, data.length - at));
        } finally {
            written.complete(null);
        }
    }

    /** Set the timeout of reads. */
    private void patience(double seconds) throws RlxException {
        try {
            socket.setSoTimeout((int) Math.max(1, 1000 * seconds));
        } catch (IOException e) {
            throw interrupted(0, "the connection is lost: " + e.getMessage(), 0);
        }
    }

    /** The next frame, or null if it has not arrived. Its length is checked before its body is read. */
    private ByteBuffer frame() throws RlxException {
        if (to - from < 4) return null;
        if (!answered && to - from >= 9 && Arrays.equals(buffer, from + 3, from + 9, SETTINGS, 0, 6)) {
            hangUp();
            throw new RlxException(Meaning.FAILED, Wire.MALFORMED, where() + ": " + SPEAKS_GRPC, 0, 0);
        }
        long size = ByteBuffer.wrap(buffer, from, 4).getInt() & 0xffffffffL;
        if (size == 0) throw mistake(Wire.MALFORMED, "a frame of length 0");
        if (size > most || size > Integer.MAX_VALUE - 64) throw mistake(2, "a frame of " + size + " bytes; the limit is " + most);
        if (to - from < 4 + size) {
            int room = (int) Math.min(4 + size, 2L * (to - from)); // grows with the data received, not with the announced length
            if (buffer.length < room) buffer = Arrays.copyOf(buffer, room);
            return null;
        }
        ByteBuffer frame = ByteBuffer.wrap(buffer, from + 4, (int) size).slice();
        from += 4 + (int) size;
        return frame;
    }

    /** Read and process frames until the expected answer arrives. 0: process what has arrived, without waiting. */
    private void hear(int due) throws RlxException {
        while (true) {
            for (ByteBuffer frame = frame(); frame != null; frame = frame()) {
                if (look(frame, due) && due != 0) return;
            }
            System.arraycopy(buffer, from, buffer, 0, to - from);
            to -= from;
            from = 0;
            int size;
            try {
                if (due == 0 && in.available() == 0) return;
                size = in.read(buffer, to, buffer.length - to);
            } catch (IOException e) {
                throw ended(due, "the server is unreachable or silent: " + e.getMessage());
            }
            if (size < 0 || gone && System.nanoTime() > until) throw ended(due, "the server's stream ended");
            to += size;
        }
    }

    private RlxException ended(int due, String why) {
        String question = ": is it an RLX server " + (config.tls == null ? "without" : "with") + " TLS?";
        return interrupted(0, due == WELCOME ? where() + ": no welcome: " + why + question : why, 0);
    }

    /** Process one frame. Returns whether it is the expected answer. */
    private boolean look(ByteBuffer payload, int due) throws RlxException {
        try {
            List<Wire.Field> found = Message.parse(payload).fields().stream().filter(f -> f.number() <= 8 && f.kind() == 2).toList();
            if (found.size() > 1) throw mistake(Wire.MALFORMED, "two messages in one frame");
            int kind = found.isEmpty() ? 0 : (int) found.get(0).number();
            Message m = kind == 0 ? null : Message.parse(found.get(0).bytes());
            if (kind == ERROR || kind == FINISHED || kind == BYE) throw farewell(kind, m);
            if (gone) return false;
            if (kind == PING) send(PONG, new Part().integer(1, m.integer(1) & 0xffffffffL));
            if (kind == PING || kind == PONG) return kind == PONG && due == PONG;
            if (kind == 0 || kind != due) throw mistake(3, "message " + kind + " is not allowed now");
            if (kind == WELCOME) readWelcome(m);
            else if (kind == RETURNS) returns = m.doubles(1, n);
            else {
                actions = Wire.readActions(m, action, n);
                readParameters(m);
            }
            return true;
        } catch (Wire.Wrong e) {
            throw mistake(e.code, "invalid Protobuf, or a value outside the agreed range");
        }
    }

    private void readWelcome(Message m) throws Wire.Wrong, RlxException {
        Message limits = Message.parse(m.all(5));
        m.text(2);
        String givenSession = m.text(3);
        algorithm = m.text(4);
        long given = limits.integer(1) & 0xffffffffL;
        double idle = limits.real(2);
        double heartbeat = limits.real(3);
        long seen = n * observation.stream().mapToLong(leaf -> leaf.size).sum() * (config.autoreset.contains(Autoreset.SAME_STEP) ? 2 : 1);
        long acted = n * action.stream().mapToLong(leaf -> leaf.size).sum();
        if (m.integer(1) != 1) throw new Wire.Wrong(4);
        if (!(idle > 0 && heartbeat > 0 && Double.isFinite(idle + heartbeat))) throw new Wire.Wrong(Wire.VALUE);
        if (!givenSession.matches("[A-Za-z0-9_-]{0,128}")) throw new Wire.Wrong(Wire.VALUE);
        if ((config.chosenActions ? seen + acted : Math.max(seen, acted)) > given) throw new Wire.Wrong(Wire.LIMIT);
        boolean[] asked = asked();
        for (int i = 0; i < asked.length; i++) {
            if (m.integer(6 + i) != 0 && !asked[i]) throw new Wire.Wrong(Wire.VALUE);
        }
        parameterNames = Wire.readNames(m);
        if (m.integer(8) == 0 && !parameterNames.isEmpty()) throw new Wire.Wrong(Wire.VALUE);
        parameters = m.doubles(10, n * parameterNames.size());
        parametersAreRead = false;
        for (int i = 0; i < asked.length; i++) {
            if (m.integer(6 + i) == 0 && asked[i]) throw lacks(CAPABILITIES[i][0], CAPABILITIES[i][1]);
        }
        session = givenSession;
        limit = given;
        most = Math.min(given, most + 2 * acted + 16 * n); // the longest possible answer
        nameBytes = limits.integer(4);
        nameLimit = limits.integer(5);
        names.clear();
        silence = Math.max(5, Math.min(3 * heartbeat, 1e6));
    }

    private RlxException lacks(String what, String setting) {
        sayBye("the welcome lacks " + what);
        String sentence = where() + ": the server or its algorithm does not support " + what;
        return new RlxException(Meaning.FAILED, UNSUPPORTED_SPACE, sentence + ": use another algorithm, or do not set " + setting, 0, 0);
    }

    /** Replace the parameters of the environments that have new ones. */
    private void readParameters(Message m) throws Wire.Wrong {
        long[] of = m.integers(2, n);
        for (int i = 0; i < of.length; i++) {
            boolean increases = of[i] > (i == 0 ? -1 : of[i - 1]);
            if (!config.environmentParameters || !increases || of[i] >= n) throw new Wire.Wrong(Wire.VALUE);
        }
        int size = parameterNames.size();
        double[] values = m.doubles(3, of.length * size);
        for (int i = 0; i < of.length; i++) System.arraycopy(values, i * size, parameters, (int) of[i] * size, size);
    }

    /** Process the server's last message: an error, the end of training, or a bye. */
    private RlxException farewell(int kind, Message m) throws Wire.Wrong {
        String text = m.text(kind == ERROR ? 2 : 1);
        double after = kind == ERROR ? m.real(4) : 0;
        if (!(after >= 0 && Double.isFinite(after))) throw new Wire.Wrong(Wire.VALUE);
        hangUp();
        if (kind == FINISHED) {
            end = new RlxException(Meaning.FINISHED, 0, "training has finished: " + text, m.integer(2), 0);
            return end;
        }
        if (kind == BYE) return interrupted(0, "the server sent bye: " + text, 0);
        long code = m.integer(1);
        String sentence = text.isEmpty() ? "error " + code : text;
        if (m.integer(3) == 0) return new RlxException(Meaning.FAILED, code, sentence, 0, 0);
        return interrupted(code, sentence, Math.min(after, 1e9));
    }

    /** Connect to the current address once. */
    private void attempt() throws RlxException {
        String where = where();
        int colon = where.lastIndexOf(':');
        String host = where.substring(0, colon).replaceAll("[\\[\\]]", "");
        int port = Integer.parseInt(where.substring(colon + 1));
        limit = HANDSHAKE_BYTES;
        most = HANDSHAKE_BYTES + (config.environmentParameters ? 2048L * n : 0);
        silence = 60;
        answered = false;
        byte[] hello = framed(HELLO, hello(true));
        boolean welcomed = false;
        try {
            tcp = socket = connected(host, port);
            patience(silence);
            if (config.tls != null) secure(host, port);
            in = socket.getInputStream();
            write(hello);
            hear(WELCOME);
            patience(silence);
            welcomed = true;
        } catch (SSLException e) {
            // a retry does not help with an untrusted certificate or a peer without TLS
            if (e.getCause() instanceof IOException) throw interrupted(0, "no TLS with " + where + ": " + e.getMessage(), 0);
            throw new RlxException(Meaning.FAILED, 0, "no TLS with " + where + ": " + e.getMessage(), 0, 0);
        } catch (IOException e) {
            throw interrupted(0, "cannot connect to " + where + ": " + e.getMessage() + ": is an RLX server running there?", 0);
        } finally {
            if (!welcomed) hangUp();
        }
    }

    /** Connect to the first address of the host that accepts. */
    private static Socket connected(String host, int port) throws IOException {
        IOException why = null;
        for (InetAddress one : InetAddress.getAllByName(host)) {
            Socket socket = new Socket();
            try {
                socket.setTcpNoDelay(true);
                socket.connect(new InetSocketAddress(one, port), 10_000);
                return socket;
            } catch (IOException e) {
                socket.close();
                why = e;
            }
        }
        throw why;
    }

    private void secure(String host, int port) throws IOException {
        SSLSocket secure = (SSLSocket) config.tls.getSocketFactory().createSocket(tcp, host, port, true);
        socket = secure;
        SSLParameters parameters = secure.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS"); // check that the certificate is for the host
        secure.setSSLParameters(parameters);
        secure.startHandshake();
    }

    /** Which of the capabilities the client asks for. */
    private boolean[] asked() {
        return new boolean[] {config.outOfStep, config.chosenActions, config.environmentParameters};
    }

    /** The bounds of observations are left out if the hello would be too long (section 6). */
    private Part hello(boolean bounds) {
        Part hello = new Part().integer(1, 1).text(2, "relaax-java").text(3, VERSION).text(4, config.token);
        hello.text(5, config.environment).text(6, config.host).integer(7, config.frameSkip);
        hello.space(8, config.observation, bounds).space(9, config.action, true).integer(10, n);
        hello.packed(11, config.autoreset.stream().mapToLong(habit -> habit.ordinal() + 1).toArray());
        hello.integer(12, config.mode.ordinal() + 1).text(13, session).integer(14, config.reportsEpisodes ? 1 : 0);
        boolean[] asked = asked();
        for (int i = 0; i < asked.length; i++) hello.integer(15 + i, asked[i] ? 1 : 0);
        return bounds && hello.size() > HANDSHAKE_BYTES - 4 ? hello(false) : hello;
    }

    /** Wait before the next attempt, longer after each failure, or give up. */
    private void backOff(RlxException reason) throws RlxException {
        double chance = ThreadLocalRandom.current().nextDouble();
        double wait = Math.min(30, 0.5 * Math.pow(2, failures)) * (0.5 + chance / 2);
        wait = Math.max(wait, reason.retryAfter * (1 + chance / 5));
        if (failures == 0) since = System.nanoTime();
        if ((System.nanoTime() - since) / 1e9 + wait > config.retrySeconds) {
            failures = 0;
            throw new RlxException(Meaning.FAILED, reason.code, reason.getMessage(), 0, 0);
        }
        failures++;
        address++;
        config.onRetry.accept(reason, wait);
        try {
            Thread.sleep((long) Math.ceil(1000 * wait));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new RlxException(Meaning.FAILED, 0, "the thread was interrupted", 0, 0);
        }
    }

    private void ask(int kind, Part content, int due) throws RlxException {
        send(kind, content);
        hear(due);
        if (due == PONG) return;
        answered = true;
        failures = 0;
        playing = due == ACTIONS;
    }

    /** Pack an observation or an action. The values of rows that are {@code hidden} are not checked. */
    private List<byte[]> pack(List<Space.Leaf> parts, Object[] leaves, boolean[] hidden) {
        if (leaves == null || leaves.length != parts.size()) {
            throw new IllegalArgumentException("an " + (parts == action ? "action" : "observation") + " has " + parts.size() + " leaves");
        }
        List<byte[]> all = new ArrayList<>();
        for (int i = 0; i < leaves.length; i++) all.add(parts.get(i).pack(leaves[i], n, parts == action, hidden));
        return all;
    }

    private void addChosen(Part content, int field, Outcome o) {
        if (chose) content.mask(field, o.chosen).leaves(field + 1, action, pack(action, o.action, hiddenAction), n);
    }

    private void checkMask(String name, boolean[] mask, boolean allowed, String setting) {
        if (mask == null) return;
        if (mask.length != n) throw new IllegalArgumentException(name + " has " + n + " entries");
        for (int i = 0; i < n && !allowed; i++) {
            if (mask[i]) throw new IllegalArgumentException(name + " marks environment " + i + ": set " + setting + " to true");
        }
    }

    /** Check an outcome, and record the masks of its message. */
    private void check(Outcome o, boolean stepping) throws RlxException {
        if (end != null) throw end;
        if (socket == null) throw lost != null ? lost : interrupted(0, "the connection is lost: call init to reconnect", 0);
        if (!playing) throw new IllegalArgumentException("no episode is in progress: call init first");
        if (o.reward.length != n || o.terminated != null && o.terminated.length != n || o.truncated != null && o.truncated.length != n) {
            throw new IllegalArgumentException("rewards and masks have " + n + " entries");
        }
        if (stepping) checkMask("idle", o.idle, config.outOfStep, "outOfStep");
        checkMask("chosen", o.chosen, config.chosenActions, "chosenActions");
        chose = false;
        boolean needed = false, allowed = !stepping;
        for (int i = 0; i < n; i++) {
            boolean over = stepping && o.terminated != null && o.terminated[i];
            boolean idle = stepping && o.idle != null && o.idle[i];
            cut[i] = o.truncated != null && o.truncated[i] && !over && (stepping || !away[i]);
            boolean ended = over || cut[i];
            first[i] = away[i] && !idle;
            hidden[i] = idle && !(ended && habit(i) == Autoreset.NEXT_STEP);
            hiddenFinal[i] = !(ended && habit(i) == Autoreset.SAME_STEP);
            hiddenAction[i] = o.chosen == null || !o.chosen[i];
            awayNext[i] = ended ? idle || habit(i) == Autoreset.NEXT_STEP : idle && away[i];
            if (!(Math.abs(o.reward[i]) <= 1e15)) {
                throw new IllegalArgumentException("the reward of environment " + i + " is " + o.reward[i] + "; it must be from -1e15 to 1e15");
            }
            if (stepping && ended && (habit(i) == Autoreset.DISABLED || away[i])) {
                throw new IllegalArgumentException("the episode of environment " + i + " cannot end in this step");
            }
            if (!hiddenAction[i] && (away[i] || idle && !ended)) {
                throw new IllegalArgumentException("chosen marks environment " + i + ", which took no action");
            }
            chose |= !hiddenAction[i];
            needed |= cut[i] && (!stepping || habit(i) == Autoreset.SAME_STEP);
            allowed |= !hiddenFinal[i];
        }
        if (needed && o.finalObservation == null) throw new IllegalArgumentException("a truncated episode needs its final observation");
        if (!allowed && o.finalObservation != null) throw new IllegalArgumentException("a final observation was given, but no episode ended");
        boolean known = o.episodes.stream().allMatch(e -> e.environment >= 0 && e.environment < n && e.length > 0 && Math.abs(e.episodeReturn) <= 1e30);
        known &= o.episodes.stream().map(Episode::environment).distinct().count() == o.episodes.size();
        if (!known || !config.reportsEpisodes && !o.episodes.isEmpty()) {
            throw new IllegalArgumentException("episodes: at most one for each environment, and only with reportsEpisodes");
        }
    }
}
