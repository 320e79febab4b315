package relaax.rlx;

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import relaax.rlx.RlxException.Meaning;

/**
 * What the golden conversations do not show: the example of section 13, what is refused before it is sent, connecting
 * again, and answers that were right before they were changed. A program of its own, for want of JUnit in Java.
 */
final class ClientTest {
    private static final String WELCOME = "0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002";
    private static final String ACTIONS = "0000001312110a0f08091201011a080200000000000000";
    private static final Object[] SEEN = {new float[] {0, 0}};

    /** A server that answers each question with the next frame of a script, one script for each connection. */
    private static final class Server extends Thread {
        private final ServerSocket listener;
        private final String[][] scripts;
        private final ByteArrayOutputStream told = new ByteArrayOutputStream();

        Server(String[]... scripts) throws IOException {
            this.scripts = scripts;
            listener = new ServerSocket(0, 5, InetAddress.getLoopbackAddress());
            start();
        }

        String address() {
            return "127.0.0.1:" + listener.getLocalPort();
        }

        @Override
        public void run() {
            for (String[] script : scripts) {
                try (Socket socket = listener.accept()) {
                    DataInputStream in = new DataInputStream(socket.getInputStream());
                    for (String answer : script) {
                        for (int kind = 7; kind == 5 || kind >= 7;) { // what is not answered: metrics, pongs, byes
                            byte[] payload = new byte[in.readInt()];
                            in.readFully(payload);
                            told.writeBytes(ByteBuffer.allocate(4).putInt(payload.length).array());
                            told.writeBytes(payload);
                            kind = payload[0] >> 3;
                        }
                        socket.getOutputStream().write(HexFormat.of().parseHex(answer));
                    }
                } catch (IOException e) {
                    // the client has gone
                }
            }
        }

        String told() throws Exception {
            join();
            listener.close();
            return HexFormat.of().formatHex(told.toByteArray());
        }
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

    private static void bytesOfThePage() throws Exception {
        Server server = new Server(new String[] {WELCOME, ACTIONS, ACTIONS});
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

    private static void refusedBeforeItIsSent() throws Exception {
        Server server = new Server(new String[] {WELCOME, ACTIONS});
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

    private static void connectsAgain() throws Exception {
        Server server = new Server(new String[] {WELCOME, ACTIONS}, new String[] {"000000152213080b120466756c6c180121000000000000e83f"},
                new String[] {WELCOME, ACTIONS, "000000062a0410c0c407"});
        Client.Config config = point(server.address(), server.address());
        config.retrySeconds = 60;
        try (Client client = new Client(config)) {
            client.init(SEEN, null);
            check(meaningOf(() -> client.step(outcome(1, SEEN))) == Meaning.INTERRUPTED, "the loss");
            long began = System.nanoTime();
            client.init(SEEN, null);
            check(System.nanoTime() - began >= 1_000_000_000L, "0.25 s at least, then the 0.75 s of the error");
            try {
                client.step(outcome(1, SEEN));
                check(false, "the end of training");
            } catch (RlxException e) {
                check(e.meaning == Meaning.FINISHED && e.globalStep == 123456, e);
            }
            check(meaningOf(() -> client.init(SEEN, null)) == Meaning.FINISHED, "it came back");
        }
        check(server.told().split("6a027331", -1).length == 3, "the session id of the two that came back");
    }

    private static void changedAnswersAreUnderstoodOrRefused() throws Exception {
        Random random = new Random(1);
        int understood = 0, refused = 0;
        List<Space.Leaf> leaves = new Space.Discrete(3).leaves();
        for (int round = 0; round < 100_000; round++) {
            byte[] data = HexFormat.of().parseHex((round % 2 == 0 ? WELCOME : ACTIONS).substring(12));
            for (int changes = random.nextInt(4); changes > 0 && data.length > 0; changes--) {
                int at = random.nextInt(data.length);
                if (random.nextInt(4) > 0) data[at] = (byte) random.nextInt(256);
                else data = Arrays.copyOf(data, at + random.nextInt(3));
            }
            try {
                Wire.Message m = Wire.Message.parse(ByteBuffer.wrap(data));
                if (round % 2 == 0) Wire.Message.parse(m.all(5)).real(3);
                else Wire.readActions(m, leaves, 1);
                understood++;
            } catch (Wire.Wrong e) {
                refused++;
            }
        }
        check(understood > 1000 && refused > 1000, understood + " " + refused);
    }

    public static void main(String[] arguments) throws Exception {
        bytesOfThePage();
        refusedBeforeItIsSent();
        connectsAgain();
        changedAnswersAreUnderstoodOrRefused();
        System.out.println("all passed");
    }
}
