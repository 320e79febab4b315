import java.io.FileInputStream;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import relaax.rlx.Client;
import relaax.rlx.Client.Autoreset;
import relaax.rlx.RlxException;
import relaax.rlx.Space;

/**
 * CartPole as an RLX client:
 *
 * <pre>java CartPole HOST:PORT[,HOST:PORT] [--environments N] [--autoreset disabled|same_step|next_step]
 *      [--mode train|exploit] [--episodes K] [--seed S] [--token-file FILE] [--tls-ca FILE]</pre>
 */
public final class CartPole {
    private static Random random = new Random();

    private double[] state = random.doubles(4, -0.05, 0.05).toArray();
    private int steps;
    private boolean terminated, truncated;

    /** One Euler step of 0.02 s: Barto, Sutton and Anderson 1983, with the constants of gymnasium's CartPole-v1. */
    private void step(long action) {
        double sine = Math.sin(state[2]), cosine = Math.cos(state[2]);
        double push = ((action == 1 ? 10 : -10) + 0.05 * state[3] * state[3] * sine) / 1.1;
        double twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3.0 - 0.1 * cosine * cosine / 1.1));
        double acceleration = push - 0.05 * twist * cosine / 1.1;
        state = new double[] {state[0] + 0.02 * state[1], state[1] + 0.02 * acceleration, state[2] + 0.02 * state[3], state[3] + 0.02 * twist};
        steps++;
        terminated = Math.abs(state[0]) > 2.4 || Math.abs(state[2]) > Math.toRadians(12);
        truncated = steps >= 500 && !terminated;
    }

    private static Object[] show(CartPole[] poles) {
        float[] leaf = new float[4 * poles.length];
        for (int i = 0; i < leaf.length; i++) leaf[i] = (float) poles[i / 4].state[i % 4];
        return new Object[] {leaf};
    }

    private static CartPole[] fresh(int n) {
        CartPole[] poles = new CartPole[n];
        for (int i = 0; i < n; i++) poles[i] = new CartPole();
        return poles;
    }

    private static long episodes, wanted;
    private static double total;

    /** Play until enough episodes have ended. An exception ends it earlier. */
    private static void play(Client client, int n, Autoreset autoreset) throws RlxException {
        CartPole[] poles = fresh(n);
        boolean[] ended = new boolean[n];
        Object[] actions = client.init(show(poles), null);
        while (wanted == 0 || episodes < wanted) {
            Client.Outcome o = new Client.Outcome();
            o.reward = new double[n];
            o.terminated = new boolean[n];
            o.truncated = new boolean[n];
            CartPole[] last = poles.clone();
            boolean any = false;
            for (int i = 0; i < n; i++) {
                if (ended[i]) { // NEXT_STEP: this step only begins an episode
                    poles[i] = new CartPole();
                    ended[i] = false;
                    continue;
                }
                CartPole pole = poles[i];
                pole.step(((long[]) actions[0])[i]);
                o.reward[i] = 1;
                o.terminated[i] = pole.terminated;
                o.truncated[i] = pole.truncated;
                if (!pole.terminated && !pole.truncated) continue;
                any = true;
                episodes++;
                total += pole.steps;
                client.metric("episode/length", pole.steps);
                ended[i] = autoreset == Autoreset.NEXT_STEP;
                if (autoreset == Autoreset.SAME_STEP) poles[i] = new CartPole();
            }
            if (any && autoreset != Autoreset.NEXT_STEP) o.finalObservation = show(last);
            if (any && autoreset == Autoreset.DISABLED) { // all episodes end together
                for (int i = 0; i < n; i++) o.truncated[i] = !o.terminated[i];
                client.reset(o);
                poles = fresh(n);
                actions = client.init(show(poles), null);
            } else {
                o.observation = show(poles);
                actions = client.step(o);
            }
        }
    }

    private static SSLContext trusting(String file) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (FileInputStream in = new FileInputStream(file)) {
            store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }

    private static Client.Config config(String[] words) throws Exception {
        Client.Config config = new Client.Config();
        config.addresses = List.of(words[0].split(","));
        config.autoreset = List.of(Autoreset.SAME_STEP);
        config.observation = new Space.Box(Space.Dtype.FLOAT32, 4);
        config.action = new Space.Discrete(2);
        config.environment = "CartPole";
        try {
            config.host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            config.host = "";
        }
        for (int i = 1; i + 1 < words.length; i += 2) {
            String value = words[i + 1];
            switch (words[i]) {
                case "--environments" -> config.environments = Integer.parseInt(value);
                case "--autoreset" -> config.autoreset = List.of(Autoreset.valueOf(value.toUpperCase(Locale.ROOT)));
                case "--mode" -> config.mode = Client.Mode.valueOf(value.toUpperCase(Locale.ROOT));
                case "--episodes" -> wanted = Long.parseLong(value);
                case "--seed" -> random = new Random(Long.parseLong(value));
                case "--token-file" -> config.token = Files.readString(Path.of(value)).strip();
                case "--tls-ca" -> config.tls = trusting(value);
                default -> throw new IllegalArgumentException(words[i] + " is unknown");
            }
        }
        return config;
    }

    public static void main(String[] words) {
        int code = 0;
        try {
            if (words.length == 0) throw new IllegalArgumentException("the address HOST:PORT is missing");
            Client.Config config = config(words);
            try (Client client = new Client(config)) {
                for (boolean again = true; again;) {
                    again = false;
                    try {
                        play(client, config.environments, config.autoreset.get(0));
                    } catch (RlxException e) {
                        again = e.meaning == RlxException.Meaning.INTERRUPTED; // new episodes, a new connection
                        if (e.meaning == RlxException.Meaning.FAILED) throw e;
                        if (!again) System.out.println(e.getMessage());
                    }
                }
            }
        } catch (RlxException e) {
            System.err.println(e.getMessage());
            code = e.code >= 4 && e.code <= 7 ? 2 : 1; // 2: a retry does not help
        } catch (Exception e) {
            System.err.println(e.getMessage());
            code = 2;
        }
        if (episodes > 0) System.out.printf(Locale.ROOT, "mean of %d episodes: %.2f%n", episodes, total / episodes);
        System.exit(code);
    }
}
