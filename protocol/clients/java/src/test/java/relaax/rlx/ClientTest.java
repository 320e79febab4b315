package relaax.rlx;

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;
import relaax.rlx.RlxException.Meaning;

/**
 * Tests beyond the golden message sequences: the example of section 13, invalid arguments, reconnecting, and changed
 * answers. It is a program, because Java does not include JUnit.
 */
final class ClientTest {
    private static final String WELCOME = "0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002";
    private static final String ACTIONS = "0000001312110a0f08091201011a080200000000000000";
    private static final String FULL = "000000152213080b120466756c6c180121000000000000e83f";
    private static final String OVER = "000000062a0410c0c407";
    /** A welcome with out_of_step, and actions of two environments. */
    private static final String TURNS = with(WELCOME, "3001");
    private static final String TWO = "0000001b12190a1708091201021a10" + "00".repeat(16);
    private static final String RETURNS = "000000141a120a10" + "00".repeat(16);
    /** A welcome with the parameters "a" and "b" of two environments. */
    private static final String GIVEN = with(WELCOME, "4001" + "4a0161" + "4a0162" + doubles(10, 1, 2, 3, 4));
    private static final Object[] SEEN = {new float[] {0, 0}};
    /** For observations that are larger than socket buffers, and with a heartbeat of 0.1 s. */
    private static final String ROOM = "0000002d0a2b08011a0273312204646133632a1d08ffffff7f110000000000c08240199a9999999999b93f208001288002";
    private static final Object[] LARGE = {new byte[8_000_000]};

    /** What a server does instead of an answer. Returns the socket to continue with. */
    private interface Deed {
        Socket with(Socket socket) throws Exception;
    }

    /**
     * A server that answers each request with the next frame of a script, one script for each connection. To close with
     * a request unread resets the connection: an empty frame reads one without an answer.
     */
    private static final class Server extends Thread {
        private final ServerSocket listener;
        private final Object[][] scripts;
        private final ByteArrayOutputStream told = new ByteArrayOutputStream();

        Server(Object[]... scripts) throws IOException {
            this.scripts = scripts;
            listener = new ServerSocket(0, 5, InetAddress.getLoopbackAddress());
            start();
        }

        String address() {
            return "localhost:" + listener.getLocalPort();
        }

        @Override
        public void run() {
            for (Object[] script : scripts) {
                try (Socket accepted = listener.accept()) {
                    Socket socket = accepted;
                    socket.setTcpNoDelay(true);
                    for (Object answer : script) {
                        if (answer instanceof Deed deed) {
                            socket = deed.with(socket);
                            continue;
                        }
                        asked(socket);
                        write(socket, (String) answer);
                    }
                } catch (Exception e) {
                    // the client disconnected
                }
            }
        }

        private void asked(Socket socket) throws IOException {
            DataInputStream in = new DataInputStream(socket.getInputStream());
            for (int kind = 7; kind == 5 || kind >= 7;) { // metrics, pongs, byes need no answer
                byte[] payload = new byte[in.readInt()];
                in.readFully(payload);
                told.writeBytes(ByteBuffer.allocate(4).putInt(payload.length).array());
                told.writeBytes(payload);
                kind = payload[0] >> 3;
            }
        }

        String told() throws Exception {
            join();
            listener.close();
            return HexFormat.of().formatHex(told.toByteArray());
        }
    }

    private static Socket write(Socket socket, String answer) throws IOException {
        socket.getOutputStream().write(HexFormat.of().parseHex(answer));
        return socket;
    }

    /** Add fields to a message. */
    private static String with(String message, String fields) {
        Wire.Part content = new Wire.Part();
        content.writeBytes(HexFormat.of().parseHex(message.substring(12) + fields));
        return HexFormat.of().formatHex(content.frame(Integer.parseInt(message.substring(8, 10), 16) >> 3));
    }

    private static String doubles(int field, double... numbers) {
        return HexFormat.of().formatHex(new Wire.Part().doubles(field, numbers).toByteArray());
    }

    private interface Action {
        void run() throws Exception;
    }

    private static void check(boolean right, Object what) {
        if (!right) throw new AssertionError(what);
    }

    private static void refused(Action action) throws Exception {
        try {
            action.run();
        } catch (IllegalArgumentException e) {
            check(!e.getMessage().isEmpty(), "a sentence");
            return;
        }
        throw new AssertionError("it was not refused");
    }

    private static Client.Config point(String... addresses) {
        Client.Config c = new Client.Config();
        c.addresses = List.of(addresses);
        c.environment = "Point-v0";
        c.observation = new Space.Box(Space.Dtype.FLOAT32, 2);
        c.action = new Space.Discrete(3);
        c.retrySeconds = -1;
        return c;
    }

    private static Client.Outcome outcome(double reward, Object[] observation) {
        Client.Outcome o = new Client.Outcome();
        o.reward = new double[] {reward};
        o.observation = observation;
        return o;
    }

    private static void exampleBytesOfSpecification() throws Exception {
        Server server = new Server(new Object[] {WELCOME, ACTIONS, ACTIONS});
        try (Client client = new Client(point(server.address()))) {
            check(((long[]) client.init(new Object[] {new float[] {0.5f, -0.25f}}, null)[0])[0] == 2, "the action");
            check(client.session().equals("s1") && client.algorithm().equals("da3c"), "the welcome");
            client.step(outcome(1, new Object[] {new float[] {0.75f, 0}}));
        }
        String told = server.told();
        for (String due : List.of("380142070a05080b1201024a041202080350015a01016001", "0000001412120a10080b120201021a080000003f000080be",
                "0000001e1a1c0a08000000000000f03f1210080b120201021a080000403f00000000")) {
            check(told.contains(due), due + " is not in " + told);
        }
    }

    private static void invalidArgumentsAreNotSent() throws Exception {
        Server server = new Server(new Object[] {WELCOME, ACTIONS});
        try (Client client = new Client(point(server.address()))) {
            check(!client.metric("before", 1), "there is no connection yet");
            refused(() -> client.init(new Object[] {new float[] {0, Float.NaN}}, null));
            client.init(SEEN, null);
            refused(() -> client.init(SEEN, null));
            for (double reward : new double[] {2e15, Double.NaN}) refused(() -> client.step(outcome(reward, SEEN)));
            refused(() -> client.step(outcome(1, new Object[] {new float[1]})));
            refused(() -> client.step(outcome(1, new Object[] {new double[2]})));
            Client.Outcome over = outcome(1, SEEN);
            over.terminated = new boolean[] {true};
            refused(() -> client.step(over));
            Client.Outcome last = outcome(1, SEEN);
            last.finalObservation = SEEN;
            refused(() -> client.step(last));
            Client.Outcome counted = outcome(1, SEEN);
            counted.episodes = List.of(new Client.Episode(0, 1, 1));
            refused(() -> client.step(counted));
            Client.Outcome cut = outcome(1, null);
            cut.truncated = new boolean[] {true};
            refused(() -> client.reset(cut));
            refused(() -> client.metric("", 1));
            for (double value : new double[] {Double.NaN, 2e30}) refused(() -> client.metric("x", value));
        }
        check(!server.told().contains("1a1c"), "a step was sent");
        Client.Config wrong = point("a:1");
        for (int[] shape : new int[][] {{0}, {65536, 65536}}) {
            wrong.observation = new Space.Box(Space.Dtype.FLOAT32, shape);
            refused(() -> new Client(wrong).close());
        }
        for (String where : List.of("localhost", "localhost:", ":1")) refused(() -> new Client(point(where)).close());
        refused(() -> new Client(point()).close());
        Client.Config many = point("a:1");
        many.autoreset = List.of(Client.Autoreset.DISABLED, Client.Autoreset.DISABLED);
        refused(() -> new Client(many).close());
    }

    private static Meaning meaningOf(Action action) throws Exception {
        try {
            action.run();
        } catch (RlxException e) {
            return e.meaning;
        }
        return null;
    }

    private static void reconnects() throws Exception {
        Server server = new Server(new Object[] {WELCOME, ACTIONS, ""}, new Object[] {FULL}, new Object[] {WELCOME, ACTIONS, OVER});
        Client.Config config = point(server.address(), server.address());
        List<String> reasons = new ArrayList<>();
        config.retrySeconds = 60;
        config.onRetry = (reason, seconds) -> reasons.add(reason.getMessage());
        try (Client client = new Client(config)) {
            client.init(SEEN, null);
            check(meaningOf(() -> client.step(outcome(1, SEEN))) == Meaning.INTERRUPTED, "the loss");
            long began = System.nanoTime();
            client.init(SEEN, null);
            check(reasons.equals(List.of("the server's stream ended", "full")), reasons);
            check(System.nanoTime() - began >= 1_000_000_000L, "at least 0.25 s, then the 0.75 s of the error");
            try {
                client.step(outcome(1, SEEN));
                check(false, "the end of training");
            } catch (RlxException e) {
                check(e.meaning == Meaning.FINISHED && e.globalStep == 123456, e);
            }
            check(meaningOf(() -> client.init(SEEN, null)) == Meaning.FINISHED, "it came back");
        }
        check(server.told().split("6a027331", -1).length == 3, "the session id in the hellos of the two reconnects");
    }

    private static void oneEntryForEachEnvironment() throws Exception {
        Server server = new Server(new Object[] {WELCOME, ACTIONS});
        Client.Config config = point(server.address());
        config.reportsEpisodes = true;
        try (Client client = new Client(config)) {
            refused(() -> client.init(SEEN, new boolean[2]));
            client.init(SEEN, new boolean[] {true});
            Client.Outcome twice = outcome(1, SEEN);
            twice.episodes = List.of(new Client.Episode(0, 1, 1), new Client.Episode(0, 1, 1));
            refused(() -> client.step(twice));
        }
        check(!server.told().contains("1a1c"), "a step was sent");
    }

    private static Client.Config players(Client.Autoreset mode, String address) {
        Client.Config c = point(address);
        c.environments = 2;
        c.autoreset = List.of(mode);
        c.outOfStep = true;
        return c;
    }

    /** The leaves of two environments. null: a void row, of NaN. */
    private static Object[] rows(Float one, Float other) {
        float a = one == null ? Float.NaN : one, b = other == null ? Float.NaN : other;
        return new Object[] {new float[] {a, a, b, b}};
    }

    /** Masks are of the form "01". */
    private static Client.Outcome turn(Object[] observation, String idle, String terminated, String truncated) {
        Client.Outcome o = outcome(0, observation);
        o.reward = new double[2];
        o.idle = mask(idle);
        o.terminated = mask(terminated);
        o.truncated = mask(truncated);
        return o;
    }

    private static boolean[] mask(String digits) {
        return new boolean[] {digits.charAt(0) == '1', digits.charAt(1) == '1'};
    }

    /** Check that the server was told each of these pieces, in this order. */
    private static void checkOrder(String told, String... pieces) {
        int at = 0;
        for (String piece : pieces) {
            at = told.indexOf(piece, at);
            check(at >= 0, piece + " is not in its place in " + told);
            at += piece.length();
        }
    }

    private static void playersTakeTurns() throws Exception {
        Server server = new Server(new Object[] {TURNS, TWO, TWO, TWO, TWO, TWO});
        try (Client client = new Client(players(Client.Autoreset.SAME_STEP, server.address()))) {
            client.init(rows(1f, null), null, mask("01"));
            client.step(turn(rows(null, 2f), "10", "00", "00"));
            client.step(turn(rows(3f, null), "01", "00", "00"));
            client.step(turn(rows(null, null), "11", "11", "00"));
            client.step(turn(rows(4f, 5f), "00", "00", "00"));
        }
        String none = "0000c07f".repeat(2), one = "0000803f".repeat(2), two = "00000040".repeat(2);
        String three = "00004040".repeat(2), both = "00008040".repeat(2) + "0000a040".repeat(2);
        checkOrder(server.told(), "5002" + "5a0102" + "6001" + "7801", one + none + "1a020001", none + two + "32020001" + "42020100",
                three + none + "42020001" + "0000", none + none + "1a020101" + "42020101" + "0000", both + "32020101");
    }

    private static void environmentsThatLeaveHaveAnObservationWhereTheirModeHasIt() throws Exception {
        Server server = new Server(new Object[] {TURNS, TWO, TWO, TWO, TWO, RETURNS});
        try (Client client = new Client(players(Client.Autoreset.NEXT_STEP, server.address()))) {
            client.init(rows(null, null), null, mask("11"));
            refused(() -> client.step(turn(rows(null, 1f), "00", "00", "00")));
            client.step(turn(rows(1f, 2f), "00", "00", "00"));
            refused(() -> client.step(turn(rows(3f, null), "11", "01", "00")));
            client.step(turn(rows(null, 3f), "11", "01", "00"));
            for (String idle : List.of("00", "01")) refused(() -> client.step(turn(rows(4f, 4f), idle, "00", "01")));
            client.step(turn(rows(4f, null), "01", "00", "00"));
            Client.Outcome last = turn(null, "00", "00", "11");
            last.finalObservation = rows(5f, null);
            refused(() -> client.reset(last));
            last.finalObservation = rows(5f, 6f);
            client.reset(last);
        }
        String none = "0000c07f".repeat(2), three = "00004040".repeat(2), four = "00008040".repeat(2);
        checkOrder(server.told(), none + none + "1a020101", "32020101" + "0000", none + three + "1a020001" + "42020101" + "0000",
                four + none + "42020001" + "0000", "12020100");
        Server other = new Server(new Object[] {TURNS, TWO, TWO, TWO});
        try (Client client = new Client(players(Client.Autoreset.SAME_STEP, other.address()))) {
            client.init(rows(1f, 1f), null);
            Client.Outcome cut = turn(rows(null, null), "11", "00", "01");
            refused(() -> client.step(cut));
            cut.finalObservation = rows(1f, null);
            refused(() -> client.step(cut));
            cut.finalObservation = rows(null, 7f);
            client.step(cut);
            client.step(turn(rows(1f, 8f), "00", "00", "00"));
        }
        checkOrder(other.told(), none + none + "22020001", none + "0000e040".repeat(2) + "42020101", "32020001");
    }

    private static void idleIsRefusedWhereItIsNotAllowed() throws Exception {
        Server server = new Server(new Object[] {TURNS, TWO, TWO}, new Object[] {WELCOME, TWO});
        Client.Config config = players(Client.Autoreset.DISABLED, server.address());
        try (Client client = new Client(config)) {
            refused(() -> client.init(rows(1f, 1f), null, new boolean[1]));
            client.init(rows(1f, null), null, mask("01"));
            Client.Outcome one = turn(rows(1f, 1f), "00", "00", "00");
            one.idle = new boolean[3];
            refused(() -> client.step(one));
            for (String over : List.of("10", "01")) refused(() -> client.step(turn(rows(1f, 1f), "11", over, "00")));
            refused(() -> client.step(turn(rows(null, 1f), "01", "00", "00")));
            client.step(turn(rows(null, null), "11", "00", "00"));
        }
        config.outOfStep = false;
        try (Client client = new Client(config)) {
            refused(() -> client.init(rows(1f, 1f), null, mask("01")));
            client.init(rows(1f, 1f), null, mask("00"));
            refused(() -> client.step(turn(rows(1f, 1f), "10", "00", "00")));
        }
        String told = server.told();
        check(told.split("000000(2e|3[0-9a-f])1a", -1).length == 2, "a refused step was sent: " + told);
        check(told.split("6001" + "7801", -1).length == 2, "the hello of a client in step asks for out_of_step: " + told);
    }

    private static void welcomeMustAgreeOnCapabilities() throws Exception {
        String[] capabilities = {"environments out of step", "actions of the client", "parameters of environments"};
        for (int i = 0; i < 6; i++) {
            boolean asked = i % 2 == 0;
            String welcome = with(WELCOME, List.of("3001", "3801", "4001").get(i / 2));
            Server server = new Server(new Object[] {asked ? WELCOME : welcome, TWO});
            Client.Config config = point(server.address());
            config.environments = 2;
            config.outOfStep = i == 0;
            config.chosenActions = i == 2;
            config.environmentParameters = i == 4;
            config.retrySeconds = 60;
            refusesServer(config, asked ? 6 : 8, asked ? "does not support " + capabilities[i / 2] : "mistake");
            String reason = HexFormat.of().formatHex(("the welcome lacks " + capabilities[i / 2]).getBytes());
            check(server.told().contains(reason) == asked, "the reason of the bye");
        }
    }

    private static void refusesServer(Client.Config config, int code, String sentence) throws Exception {
        try (Client client = new Client(config)) {
            client.init(rows(1f, 1f), null);
            check(false, "it was believed");
        } catch (RlxException e) {
            check(e.meaning == Meaning.FAILED && e.code == code && e.getMessage().contains(sentence), e + " " + e.code);
        }
    }

    private static Client.Outcome takeover(Client.Outcome o, String chosen, long... action) {
        o.chosen = mask(chosen);
        o.action = new Object[] {action};
        return o;
    }

    private static void clientTakesOver() throws Exception {
        Server server = new Server(new Object[] {with(TURNS, "3801"), TWO, TWO, TWO, TWO, RETURNS});
        Client.Config config = players(Client.Autoreset.SAME_STEP, server.address());
        config.chosenActions = true;
        try (Client client = new Client(config)) {
            client.init(rows(1f, 1f), null);
            client.step(takeover(turn(rows(1f, 1f), "00", "00", "00"), "01", 99, 2));
            client.step(takeover(turn(rows(1f, 1f), "00", "00", "00"), "00", 99, 99));
            client.step(takeover(turn(rows(1f, null), "01", "01", "00"), "01", 99, 1));
            client.reset(takeover(turn(null, "00", "00", "00"), "10", 2, 99));
        }
        String told = server.told(), form = "08091201021a10";
        String one = "01" + "00".repeat(7), two = "02" + "00".repeat(7), none = "63" + "00".repeat(7);
        checkOrder(told, "6001" + "7801" + "800101", "4a020001" + "5217" + form + none + two, "42020001" + "4a020001" + "5217" + form + none + one,
                "2a020100" + "3217" + form + two + none);
        check(told.split(form, -1).length == 4, "an action was sent that was not chosen: " + told);
    }

    private static void chosenIsRefusedWhereItIsNotAllowed() throws Exception {
        Server server = new Server(new Object[] {with(TURNS, "3801"), TWO}, new Object[] {TURNS, TWO});
        Client.Config config = players(Client.Autoreset.NEXT_STEP, server.address());
        for (boolean allowed : new boolean[] {true, false}) {
            config.chosenActions = allowed;
            try (Client client = new Client(config)) {
                client.init(rows(1f, null), null, mask("01"));
                if (!allowed) refused(() -> client.step(takeover(turn(rows(1f, 1f), "00", "00", "00"), "10", 0, 0)));
                for (long[] wrong : new long[][] {{3, 0}, {-1, 0}, {0}, {0, 0, 0}}) {
                    refused(() -> client.step(takeover(turn(rows(1f, 1f), "00", "00", "00"), "10", wrong)));
                    refused(() -> client.reset(takeover(turn(null, "00", "00", "00"), "10", wrong)));
                }
                for (String idle : List.of("00", "01", "10", "11")) {
                    refused(() -> client.step(takeover(turn(rows(1f, 1f), idle, "00", "00"), idle.charAt(0) == '1' ? "10" : "01", 0, 0)));
                }
                refused(() -> client.reset(takeover(turn(null, "00", "00", "00"), "01", 0, 0)));
                Client.Outcome o = takeover(turn(rows(1f, 1f), "00", "00", "00"), "10", 0, 0);
                o.action = null;
                refused(() -> client.step(o));
                o.action = new Object[2];
                refused(() -> client.step(o));
                o.chosen = new boolean[3];
                refused(() -> client.step(o));
            }
        }
        check(!server.told().contains("08091201021a10"), "a refused action was sent");
        Space.Leaf leaf = new Space.Box(Space.Dtype.FLOAT32, new int[0], new double[] {-1}, new double[] {1}).leaves().get(0);
        for (float wrong : new float[] {2, Float.NaN}) {
            refused(() -> leaf.pack(new float[] {wrong, 0}, 2, true, mask("01")));
            leaf.pack(new float[] {wrong, 0}, 2, true, mask("10"));
        }
    }

    private static void welcomeMustHaveRoomForActionsOfTheClient() throws Exception {
        for (boolean asked : new boolean[] {true, false}) {
            Server server = new Server(new Object[] {asked ? with(WELCOME, "3801") : WELCOME});
            Client.Config config = point(server.address());
            config.observation = config.action = new Space.Box(Space.Dtype.UINT8, 600_000);
            config.chosenActions = asked;
            try (Client client = new Client(config)) {
                client.connect();
                check(!asked, "1,200,000 bytes exceed the limit");
            } catch (RlxException e) {
                check(asked && e.code == 9, e);
            }
            server.told();
        }
    }

    private static Client.Config tuned(String address) {
        Client.Config c = point(address);
        c.environments = 2;
        c.environmentParameters = true;
        return c;
    }

    private static void checkParameters(Client client, double... due) throws Exception {
        List<double[]> found = List.copyOf(client.parameters().values());
        check(client.parameters().keySet().toString().equals("[a, b]"), client.parameters());
        check(Arrays.equals(found.get(0), new double[] {due[0], due[2]}) && Arrays.equals(found.get(1), new double[] {due[1], due[3]}), "values");
    }

    private static void serverSetsParameters() throws Exception {
        String packed = with(TWO, "120101" + doubles(3, 5, -6)), single = with(TWO, "10001001" + doubles(3, 7, 8) + "19" + "00".repeat(8) + doubles(3, 1e30));
        Server server = new Server(new Object[] {GIVEN, packed, single, ""}, new Object[] {GIVEN, TWO, RETURNS, TWO},
                new Object[] {with(WELCOME, "4001"), TWO});
        Client.Config config = tuned(server.address());
        config.retrySeconds = 60;
        config.onRetry = (reason, seconds) -> {};
        Client.Outcome plain = turn(rows(1f, 1f), "00", "00", "00");
        try (Client client = new Client(config)) {
            checkParameters(client, 1, 2, 3, 4);
            client.init(rows(1f, 1f), null);
            checkParameters(client, 1, 2, 5, -6);
            client.step(plain);
            checkParameters(client, 7, 8, 0, 1e30);
            check(meaningOf(() -> client.step(plain)) == Meaning.INTERRUPTED, "the loss");
            client.init(rows(2f, 2f), mask("01")); // on a connection whose parameters were not read
            client.reset(plain);
            checkParameters(client, 1, 2, 3, 4);
            client.init(rows(3f, 3f), mask("01"));
        }
        try (Client client = new Client(config)) {
            client.init(rows(4f, 4f), null);
            check(client.parameters().isEmpty(), "a server without parameters");
        }
        config.environmentParameters = false;
        try (Client client = new Client(config)) {
            refused(client::parameters);
        }
        String one = "0000803f".repeat(4), two = "00000040".repeat(4), three = "00004040".repeat(4);
        String told = server.told();
        checkOrder(told, "6001" + "880101", one + "000000", two + "12020101", three + "12020001", "880101", "00008040".repeat(4));
        check(told.split("12020[01]", -1).length == 3, "an episode is partial that is not: " + told);
    }

    private static void welcomeIsLongerWithParameters() throws Exception {
        String unknown = HexFormat.of().formatHex(new Wire.Part().bytes(20, new byte[67_000]).toByteArray());
        for (boolean asked : new boolean[] {true, false}) {
            Server server = new Server(new Object[] {with(asked ? GIVEN : WELCOME, unknown)});
            Client.Config config = tuned(server.address());
            config.environmentParameters = asked;
            try (Client client = new Client(config)) {
                client.connect();
                check(asked, "a welcome of more than 65,536 bytes");
            } catch (RlxException e) {
                check(!asked && e.code == 2, e);
            }
            server.told();
        }
    }

    private static void mistakesInParameters() throws Exception {
        List<String> names = new ArrayList<>();
        for (String name : List.of("00", "0109", "027f61", "02c285")) names.add("4a" + name + doubles(10, 1, 2));
        names.add("4a0161" + "4a0161" + doubles(10, 1, 2, 3, 4));
        names.add("4a8102" + "61".repeat(257)); // from here on, LIMIT_EXCEEDED
        StringBuilder many = new StringBuilder();
        for (int i = 0; i < 65; i++) many.append("4a01").append(HexFormat.of().toHexDigits((byte) (i + 48)));
        names.add(many.toString());
        for (String wrong : names) {
            Server server = new Server(new Object[] {with(WELCOME, "4001" + wrong), TWO});
            refusesServer(tuned(server.address()), names.indexOf(wrong) < 5 ? 8 : 9, "mistake");
            server.told();
        }
        List<String> values = List.of("", doubles(10, 1, 2, 3), doubles(10, 1, 2, 3, 4, 5), doubles(10, 1, 2, 3, Double.NaN), doubles(10, -2e30, 2, 3, 4));
        for (String wrong : values) {
            Server server = new Server(new Object[] {with(WELCOME, "4001" + "4a0161" + "4a0162" + wrong), TWO});
            refusesServer(tuned(server.address()), 8, "mistake");
            server.told();
        }
        for (String wrong : List.of("4a0161" + doubles(10, 1, 2), doubles(10, 1), "")) {
            Server server = new Server(new Object[] {with(WELCOME, wrong), with(TWO, wrong.isEmpty() ? "120100" : "")});
            Client.Config config = tuned(server.address());
            config.environmentParameters = false;
            refusesServer(config, 8, "mistake");
            server.told();
        }
        for (String wrong : List.of("120101", doubles(3, 1, 2), "120102" + doubles(3, 1, 2), "120101" + doubles(3, 1, Double.POSITIVE_INFINITY),
                "12020100" + doubles(3, 1, 2, 3, 4), "12020000" + doubles(3, 1, 2, 3, 4), "120affffffffffffffffff01" + doubles(3, 1, 2))) {
            Server server = new Server(new Object[] {GIVEN, with(TWO, wrong)});
            refusesServer(tuned(server.address()), 8, "mistake");
            server.told();
        }
    }

    private static void longHelloOmitsBoundsOrIsRefused() throws Exception {
        double[] ones = new double[5000];
        Arrays.fill(ones, 1);
        Space bounded = new Space.Box(Space.Dtype.FLOAT32, new int[] {5000}, ones, ones);
        Client.Config wrong = point("a:1");
        wrong.action = bounded;
        refused(() -> new Client(wrong).close());
        Server server = new Server(new Object[] {WELCOME, ACTIONS});
        Client.Config config = point(server.address());
        config.observation = bounded;
        try (Client client = new Client(config)) {
            client.init(new Object[] {new float[5000]}, null);
        }
        check(server.told().startsWith("000000"), "a short hello");
    }

    private static void lastMessageIsReportedBeforeAStep() throws Exception {
        CountDownLatch played = new CountDownLatch(1), said = new CountDownLatch(1);
        Deed finish = socket -> {
            played.await();
            write(socket, OVER);
            said.countDown();
            return socket;
        };
        Server server = new Server(new Object[] {WELCOME, ACTIONS, finish, ACTIONS});
        try (Client client = new Client(point(server.address()))) {
            client.init(SEEN, null);
            played.countDown();
            said.await();
            check(meaningOf(() -> client.step(outcome(1, SEEN))) == Meaning.FINISHED, "the end of training");
        }
        check(!server.told().contains("1a1c"), "a step was sent");
    }

    private static Client large(Server server) throws Exception {
        Client.Config config = point(server.address());
        config.observation = new Space.Box(Space.Dtype.UINT8, 8_000_000);
        Client client = new Client(config);
        client.init(LARGE, null);
        return client;
    }

    private static void lastMessageIsReportedWhenAWriteFails() throws Exception {
        for (String word : List.of(OVER, FULL, "")) {
            Deed leave = socket -> {
                socket.getInputStream().readNBytes(4);
                return write(socket, "000000023200" + word);
            };
            Server server = new Server(new Object[] {ROOM, ACTIONS, leave});
            try (Client client = large(server)) {
                client.step(outcome(1, LARGE));
                check(false, "the connection was not lost");
            } catch (RlxException e) {
                check(e.meaning == (word.equals(OVER) ? Meaning.FINISHED : Meaning.INTERRUPTED), e);
                check(e.retryAfter == (word.equals(FULL) ? 0.75 : 0), e);
            }
            server.told();
        }
    }

    private static void serverThatDoesNotReceiveIsDisconnected() throws Exception {
        CountDownLatch over = new CountDownLatch(1);
        Deed wait = socket -> {
            over.await();
            return socket;
        };
        Server server = new Server(new Object[] {ROOM, ACTIONS, wait});
        try (Client client = large(server)) {
            check(meaningOf(() -> client.step(outcome(1, LARGE))) == Meaning.INTERRUPTED, "the loss");
        }
        over.countDown();
        server.told();
    }

    private static void mistakesOfTheServer() throws Exception {
        Object[][] scripts = {{WELCOME.replace("7331", "730a")}, {FULL.replace("e83f", "e8bf")}, {WELCOME, "0002000001"}};
        for (int i = 0; i < scripts.length; i++) {
            Server server = new Server(scripts[i]);
            try (Client client = new Client(point(server.address()))) {
                client.init(SEEN, null);
                check(false, "it was believed");
            } catch (RlxException e) {
                check(e.meaning == Meaning.FAILED && e.code == (i < 2 ? 8 : 2), e);
            }
            server.told();
        }
    }

    /** The keys of a server and its client, made by this Java's keytool. */
    private static SSLContext secrets() throws Exception {
        Path folder = Files.createTempDirectory("rlx");
        Path file = folder.resolve("keys");
        String tool = Path.of(System.getProperty("java.home"), "bin", "keytool").toString();
        Process made = new ProcessBuilder(tool, "-genkeypair", "-keyalg", "EC", "-dname", "CN=localhost", "-ext", "san=dns:localhost",
                "-storetype", "PKCS12", "-keystore", file.toString(), "-storepass", "secret").inheritIO().start();
        check(made.waitFor() == 0, "keytool");
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(file)) {
            store.load(in, "secret".toCharArray());
        }
        Files.delete(file);
        Files.delete(folder);
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, "secret".toCharArray());
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        trusted.setCertificateEntry("server", store.getCertificate(store.aliases().nextElement()));
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }

    private static void lostConnectionOverTls() throws Exception {
        SSLContext tls = secrets();
        Socket[] plain = new Socket[1];
        Deed secure = socket -> {
            plain[0] = socket;
            SSLSocket over = (SSLSocket) tls.getSocketFactory().createSocket(socket, null, 0, true);
            over.setUseClientMode(false);
            return over;
        };
        Deed cut = socket -> {
            plain[0].close();
            return socket;
        };
        Deed garbage = socket -> write(plain[0], "78".repeat(64));
        Server server = new Server(new Object[0], new Object[] {secure, WELCOME, ACTIONS, cut},
                new Object[] {secure, WELCOME, ACTIONS, garbage}, new Object[] {secure, WELCOME, OVER});
        Client.Config config = point(server.address());
        config.tls = tls;
        config.retrySeconds = 60;
        try (Client client = new Client(config)) {
            for (int i = 0; i < 2; i++) {
                client.init(SEEN, null); // the first server disconnects before TLS
                check(meaningOf(() -> client.step(outcome(1, SEEN))) == Meaning.INTERRUPTED, "the loss");
            }
            check(meaningOf(() -> client.init(SEEN, null)) == Meaning.FINISHED, "the end of training");
        }
        server.told();
        Deed talk = socket -> write(socket, "6e6f20544c532068657265");
        server = new Server(new Object[] {talk});
        config.addresses = List.of(server.address());
        try (Client client = new Client(config)) {
            check(meaningOf(client::connect) == Meaning.FAILED, "a server without TLS");
        }
        server.told();
    }

    private static void changedAnswersAreAcceptedOrRefused() throws Exception {
        Random random = new Random(1);
        int understood = 0, refused = 0;
        List<Space.Leaf> leaves = new Space.Discrete(3).leaves();
        for (int round = 0; round < 100_000; round++) {
            byte[] data = HexFormat.of().parseHex((round % 2 == 0 ? GIVEN : ACTIONS).substring(12));
            for (int changes = random.nextInt(4); changes > 0 && data.length > 0; changes--) {
                int at = random.nextInt(data.length);
                if (random.nextInt(4) > 0) data[at] = (byte) random.nextInt(256);
                else data = Arrays.copyOf(data, at + random.nextInt(3));
            }
            try {
                Wire.Message m = Wire.Message.parse(ByteBuffer.wrap(data));
                if (round % 2 == 0) {
                    Wire.Message.parse(m.all(5)).real(3);
                    m.doubles(10, 2 * Wire.readNames(m).size());
                } else Wire.readActions(m, leaves, 1);
                understood++;
            } catch (Wire.Wrong e) {
                refused++;
            }
        }
        check(understood > 1000 && refused > 1000, understood + " " + refused);
    }

    public static void main(String[] arguments) throws Exception {
        exampleBytesOfSpecification();
        invalidArgumentsAreNotSent();
        reconnects();
        oneEntryForEachEnvironment();
        playersTakeTurns();
        environmentsThatLeaveHaveAnObservationWhereTheirModeHasIt();
        idleIsRefusedWhereItIsNotAllowed();
        welcomeMustAgreeOnCapabilities();
        clientTakesOver();
        chosenIsRefusedWhereItIsNotAllowed();
        welcomeMustHaveRoomForActionsOfTheClient();
        serverSetsParameters();
        welcomeIsLongerWithParameters();
        mistakesInParameters();
        longHelloOmitsBoundsOrIsRefused();
        lastMessageIsReportedBeforeAStep();
        lastMessageIsReportedWhenAWriteFails();
        serverThatDoesNotReceiveIsDisconnected();
        mistakesOfTheServer();
        lostConnectionOverTls();
        changedAnswersAreAcceptedOrRefused();
        System.out.println("all passed");
    }
}
