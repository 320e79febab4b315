using System;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net.Security;
using System.Security.Cryptography.X509Certificates;
using Rlx;

/// <summary>
/// CartPole as an RLX client:
///   mono cartpole.exe HOST:PORT[,HOST:PORT] [--environments N] [--autoreset disabled|same_step|next_step]
///        [--mode train|exploit] [--episodes K] [--seed S] [--token-file FILE] [--tls-ca FILE]
/// </summary>
public sealed class CartPole
{
    private static Random random = new Random();
    private static long episodes, wanted;
    private static double total;

    private double[] state = Enumerable.Range(0, 4).Select(_ => 0.1 * random.NextDouble() - 0.05).ToArray();
    private int steps;
    private bool terminated, truncated;

    // One Euler step of 0.02 s: Barto, Sutton and Anderson 1983, with the constants of gymnasium's CartPole-v1.
    private void Step(long action)
    {
        double sine = Math.Sin(state[2]), cosine = Math.Cos(state[2]);
        double push = ((action == 1 ? 10 : -10) + 0.05 * state[3] * state[3] * sine) / 1.1;
        double twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3.0 - 0.1 * cosine * cosine / 1.1));
        double acceleration = push - 0.05 * twist * cosine / 1.1;
        state = new[] { state[0] + 0.02 * state[1], state[1] + 0.02 * acceleration, state[2] + 0.02 * state[3], state[3] + 0.02 * twist };
        steps++;
        terminated = Math.Abs(state[0]) > 2.4 || Math.Abs(state[2]) > 12 * Math.PI / 180;
        truncated = steps >= 500 && !terminated;
    }

    private static Array[] Show(CartPole[] poles)
    {
        var leaf = new float[4 * poles.Length];
        for (int i = 0; i < leaf.Length; i++) leaf[i] = (float)poles[i / 4].state[i % 4];
        return new Array[] { leaf };
    }

    private static CartPole[] Fresh(int n) { return Enumerable.Range(0, n).Select(_ => new CartPole()).ToArray(); }

    // Play until enough episodes have ended. An exception ends it earlier.
    private static void Play(Client client, int n, Autoreset autoreset)
    {
        var poles = Fresh(n);
        var ended = new bool[n];
        var actions = client.Init(Show(poles));
        while (wanted == 0 || episodes < wanted)
        {
            var o = new Outcome { Reward = new double[n], Terminated = new bool[n], Truncated = new bool[n] };
            var last = (CartPole[])poles.Clone();
            bool any = false;
            for (int i = 0; i < n; i++)
            {
                var pole = poles[i];
                if (ended[i]) // NextStep: this step only begins an episode
                {
                    poles[i] = new CartPole();
                    ended[i] = false;
                    continue;
                }
                pole.Step(((long[])actions[0])[i]);
                o.Reward[i] = 1;
                o.Terminated[i] = pole.terminated;
                o.Truncated[i] = pole.truncated;
                if (!pole.terminated && !pole.truncated) continue;
                any = true;
                episodes++;
                total += pole.steps;
                client.Metric("episode/length", pole.steps);
                ended[i] = autoreset == Autoreset.NextStep;
                if (autoreset == Autoreset.SameStep) poles[i] = new CartPole();
            }
            if (any && autoreset != Autoreset.NextStep) o.FinalObservation = Show(last);
            if (any && autoreset == Autoreset.Disabled) // all episodes end together
            {
                o.Truncated = o.Terminated.Select(over => !over).ToArray();
                client.Reset(o);
                poles = Fresh(n);
                actions = client.Init(Show(poles));
            }
            else
            {
                o.Observation = Show(poles);
                actions = client.Step(o);
            }
        }
    }

    // Trust only certificates of this authority.
    private static RemoteCertificateValidationCallback Trusting(string file)
    {
        var authority = new X509Certificate2(file);
        return (sender, certificate, chain, errors) =>
        {
            if ((errors & ~SslPolicyErrors.RemoteCertificateChainErrors) != 0) return false; // another host name, or no certificate
            var own = new X509Chain();
            own.ChainPolicy.RevocationMode = X509RevocationMode.NoCheck;
            own.ChainPolicy.VerificationFlags = X509VerificationFlags.AllowUnknownCertificateAuthority;
            own.ChainPolicy.ExtraStore.Add(authority);
            return own.Build(new X509Certificate2(certificate))
                && own.ChainElements[own.ChainElements.Count - 1].Certificate.RawData.SequenceEqual(authority.RawData);
        };
    }

    private static Config Configured(string[] words)
    {
        if (words.Length == 0) throw new ArgumentException("the address HOST:PORT is missing");
        var config = new Config
        {
            Addresses = words[0].Split(','), Autoreset = new[] { Autoreset.SameStep }, Environment = "CartPole", Host = Environment.MachineName,
            Observation = Space.Box(Dtype.Float32, new[] { 4 }), Action = Space.Discrete(2)
        };
        for (int i = 1; i + 1 < words.Length; i += 2)
        {
            string value = words[i + 1];
            switch (words[i])
            {
                case "--environments": config.Environments = int.Parse(value); break;
                case "--autoreset": config.Autoreset = new[] { (Autoreset)Enum.Parse(typeof(Autoreset), value.Replace("_", ""), true) }; break;
                case "--mode": config.Mode = (Mode)Enum.Parse(typeof(Mode), value, true); break;
                case "--episodes": wanted = long.Parse(value); break;
                case "--seed": random = new Random(int.Parse(value)); break;
                case "--token-file": config.Token = File.ReadAllText(value).Trim(); break;
                case "--tls-ca":
                    config.Tls = true;
                    config.Trust = Trusting(value);
                    break;
                default: throw new ArgumentException(words[i] + " is unknown");
            }
        }
        return config;
    }

    public static int Main(string[] words)
    {
        try
        {
            var config = Configured(words);
            using (var client = new Client(config))
            {
                for (bool again = true; again;)
                {
                    again = false;
                    try { Play(client, config.Environments, config.Autoreset[0]); }
                    catch (RlxException e) when (e.Meaning == Meaning.Interrupted) { again = true; } // new episodes, a new connection
                    catch (RlxException e) when (e.Meaning == Meaning.Finished) { Console.WriteLine(e.Message); }
                }
            }
            if (episodes > 0) Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "mean of {0} episodes: {1:F2}", episodes, total / episodes));
            return 0;
        }
        catch (RlxException e)
        {
            Console.Error.WriteLine(e.Message);
            return e.Code >= 4 && e.Code <= 7 ? 2 : 1; // 2: a retry does not help
        }
        catch (Exception e) when (e is ArgumentException || e is FormatException || e is IOException)
        {
            Console.Error.WriteLine(e.Message);
            return 2;
        }
    }
}
