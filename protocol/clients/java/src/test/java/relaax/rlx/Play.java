package relaax.rlx;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** Executes commands from standard input, one a line, and prints what it receives: see protocol/clients/README.md. */
final class Play {
    private Deque<String> words;
    private Client client;
    private List<Space.Leaf> observation, action;
    private int n;
    private boolean hasParameters;

    private long integer() {
        return Long.parseLong(words.pop());
    }

    private byte[] bytes() {
        String digits = words.pop();
        return digits.equals("-") ? new byte[0] : HexFormat.of().parseHex(digits);
    }

    private String text() {
        return new String(bytes(), StandardCharsets.UTF_8);
    }

    private static double number(String bits) {
        return Double.longBitsToDouble(Long.parseUnsignedLong(bits, 16));
    }

    private <T> List<T> many(Supplier<T> one) {
        List<T> all = new ArrayList<>();
        for (long count = integer(); count > 0; count--) all.add(one.get());
        return all;
    }

    private double[] numbers() {
        return many(() -> number(words.pop())).stream().mapToDouble(Double::doubleValue).toArray();
    }

    private int[] shape() {
        return many(this::integer).stream().mapToInt(Long::intValue).toArray();
    }

    private Space space() {
        switch (words.pop()) {
            case "box":
                Space.Dtype dtype = Space.Dtype.values()[(int) integer() - 1];
                int[] shape = shape();
                double[] low = numbers();
                return new Space.Box(dtype, shape, low, numbers());
            case "discrete":
                long count = integer();
                return new Space.Discrete(count, integer());
            case "multi_discrete":
                return new Space.MultiDiscrete(many(this::integer).stream().mapToLong(Long::longValue).toArray());
            case "multi_binary":
                return new Space.MultiBinary(shape());
            case "tuple":
                return new Space.Tuple(many(this::space));
            default:
                Map<String, Space> parts = new LinkedHashMap<>();
                for (long left = integer(); left > 0; left--) {
                    String key = text();
                    parts.put(key, space());
                }
                return new Space.Dict(parts);
        }
    }

    private boolean[] mask() {
        String digits = words.pop();
        boolean[] mask = new boolean[digits.length()];
        for (int i = 0; i < mask.length; i++) mask[i] = digits.charAt(i) == '1';
        return digits.equals("-") ? null : mask;
    }

    private Object[] leaves(List<Space.Leaf> parts) {
        return parts.stream().map(leaf -> leaf.unpack(ByteBuffer.wrap(bytes()))).toArray();
    }

    private Client.Outcome outcome(boolean stepping) {
        Client.Outcome o = new Client.Outcome();
        o.reward = numbers();
        if (stepping) o.terminated = mask();
        o.truncated = mask();
        if (stepping) o.idle = mask();
        o.chosen = mask();
        o.episodes = new ArrayList<>();
        for (String one : words.pop().split(",")) {
            String[] parts = one.split(":");
            if (parts.length == 3) o.episodes.add(new Client.Episode(Integer.parseInt(parts[0]), number(parts[1]), Integer.parseInt(parts[2])));
        }
        if (stepping) o.observation = leaves(observation);
        if (words.size() > (o.chosen == null ? 0 : action.size())) o.finalObservation = leaves(observation);
        if (o.chosen != null) o.action = leaves(action);
        return o;
    }

    private void connect() throws RlxException {
        Client.Config c = new Client.Config();
        c.addresses = List.of(words.pop());
        c.environments = n = (int) integer();
        c.mode = Client.Mode.values()[(int) integer() - 1];
        c.frameSkip = (int) integer();
        c.reportsEpisodes = integer() != 0;
        c.outOfStep = integer() != 0;
        c.chosenActions = integer() != 0;
        c.environmentParameters = hasParameters = integer() != 0;
        c.autoreset = many(() -> Client.Autoreset.values()[(int) integer() - 1]);
        c.environment = text();
        c.host = text();
        c.token = text();
        c.sessionId = text();
        c.observation = space();
        c.action = space();
        c.retrySeconds = -1;
        observation = c.observation.leaves();
        action = c.action.leaves();
        client = new Client(c);
        client.connect();
        System.out.println("welcome " + hex(client.session().getBytes(StandardCharsets.UTF_8)) + " " + hex(client.algorithm().getBytes(StandardCharsets.UTF_8)));
        showParameters();
    }

    private static String hex(byte[] data) {
        return HexFormat.of().formatHex(data);
    }

    private static String hex(double number) {
        return hex(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putDouble(number).array());
    }

    private void showParameters() throws RlxException {
        if (!hasParameters) return;
        StringBuilder line = new StringBuilder("parameters");
        client.parameters().forEach((name, values) -> {
            line.append(' ').append(hex(name.getBytes(StandardCharsets.UTF_8)));
            for (double one : values) line.append(' ').append(hex(one));
        });
        System.out.println(line);
    }

    private void show(Object[] actions) throws RlxException {
        StringBuilder line = new StringBuilder("actions");
        for (int i = 0; i < actions.length; i++) line.append(' ').append(hex(action.get(i).pack(actions[i], n, true, null)));
        System.out.println(line);
        showParameters();
    }

    private void perform(String command) throws RlxException {
        switch (command) {
            case "connect" -> connect();
            case "metric" -> client.metric(text(), number(words.pop()));
            case "init" -> {
                boolean[] partial = mask(), idle = mask();
                show(client.init(leaves(observation), partial, idle));
            }
            case "step" -> show(client.step(outcome(true)));
            case "reset" -> {
                StringBuilder line = new StringBuilder("returns");
                for (double one : client.reset(outcome(false))) line.append(' ').append(hex(one));
                System.out.println(line);
            }
            default -> {
                client.alive();
                System.out.println("pong");
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Play play = new Play();
        boolean over = false; // after a connection has ended, other commands are skipped
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.equals("end")) {
                if (play.client != null) play.client.close();
                System.out.println("end");
                over = false;
            } else if (!over) {
                play.words = new ArrayDeque<>(List.of(line.split(" ")));
                try {
                    play.perform(play.words.pop());
                } catch (IllegalArgumentException e) {
                    System.out.println("invalid 8 " + e.getMessage());
                } catch (RlxException e) {
                    over = true;
                    boolean finished = e.meaning == RlxException.Meaning.FINISHED;
                    System.out.println((finished ? "finished " + e.globalStep : "lost " + e.code) + " " + e.getMessage());
                }
            }
        }
    }
}
