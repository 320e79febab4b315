using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;
using Rlx;

/// <summary>Executes commands from standard input, one a line, and prints what it receives: see protocol/clients/README.md.</summary>
public sealed class Play
{
    private Queue<string> words;
    private Client client;
    private Leaf[] observation, action;
    private int n;
    private bool hasParameters;

    private string Word() { return words.Dequeue(); }

    private long Integer() { return long.Parse(Word()); }

    private byte[] Bytes()
    {
        string digits = Word();
        if (digits == "-") return new byte[0];
        return Enumerable.Range(0, digits.Length / 2).Select(i => Convert.ToByte(digits.Substring(2 * i, 2), 16)).ToArray();
    }

    private string Text() { return Encoding.UTF8.GetString(Bytes()); }

    private static double Number(string bits) { return BitConverter.Int64BitsToDouble(unchecked((long)Convert.ToUInt64(bits, 16))); }

    private T[] Many<T>(Func<T> one)
    {
        var all = new T[Integer()];
        for (int i = 0; i < all.Length; i++) all[i] = one();
        return all;
    }

    private double[] Numbers() { return Many(() => Number(Word())); }

    private int[] Shape() { return Many(() => (int)Integer()); }

    private Space ReadSpace()
    {
        switch (Word())
        {
            case "box":
                var dtype = (Dtype)Integer();
                var shape = Shape();
                var low = Numbers();
                return Space.Box(dtype, shape, low, Numbers());
            case "discrete":
                long count = Integer();
                return Space.Discrete(count, Integer());
            case "multi_discrete": return Space.MultiDiscrete(Many(Integer));
            case "multi_binary": return Space.MultiBinary(Shape());
            case "tuple": return Space.Tuple(Many(ReadSpace));
        }
        var parts = new Dictionary<string, Space>();
        for (long left = Integer(); left > 0; left--)
        {
            string key = Text();
            parts.Add(key, ReadSpace());
        }
        return Space.Dict(parts);
    }

    private bool[] Mask()
    {
        string digits = Word();
        return digits == "-" ? null : digits.Select(one => one == '1').ToArray();
    }

    private Array[] Leaves(Leaf[] leaves) { return leaves.Select(leaf => leaf.Unpack(Bytes())).ToArray(); }

    private Outcome ReadOutcome(bool stepping)
    {
        var o = new Outcome { Reward = Numbers() };
        if (stepping) o.Terminated = Mask();
        o.Truncated = Mask();
        if (stepping) o.Idle = Mask();
        o.Chosen = Mask();
        foreach (var parts in Word().Split(',').Select(one => one.Split(':')).Where(parts => parts.Length == 3))
            o.Episodes.Add(new Episode { Environment = int.Parse(parts[0]), Return = Number(parts[1]), Length = int.Parse(parts[2]) });
        if (stepping) o.Observation = Leaves(observation);
        if (words.Count > (o.Chosen == null ? 0 : action.Length)) o.FinalObservation = Leaves(observation);
        if (o.Chosen != null) o.Action = Leaves(action);
        return o;
    }

    private void Connect()
    {
        var c = new Config { Addresses = new[] { Word() }, Environments = n = (int)Integer(), Mode = (Mode)Integer(), RetrySeconds = -1 };
        c.FrameSkip = (int)Integer();
        c.ReportsEpisodes = Integer() != 0;
        c.OutOfStep = Integer() != 0;
        c.ChosenActions = Integer() != 0;
        c.EnvironmentParameters = hasParameters = Integer() != 0;
        c.Autoreset = Many(() => (Autoreset)Integer());
        c.Environment = Text();
        c.Host = Text();
        c.Token = Text();
        c.SessionId = Text();
        c.Observation = ReadSpace();
        c.Action = ReadSpace();
        observation = c.Observation.Leaves();
        action = c.Action.Leaves();
        client = new Client(c);
        client.Connect();
        Console.WriteLine("welcome {0} {1}", Hex(client.Session), Hex(client.Algorithm));
        ShowParameters();
    }

    private static string Hex(byte[] data) { return string.Concat(data.Select(one => one.ToString("x2"))); }

    private static string Hex(string text) { return Hex(Encoding.UTF8.GetBytes(text)); }

    private static string Hex(double[] numbers) { return string.Join(" ", numbers.Select(one => Hex(BitConverter.GetBytes(one)))); }

    private void ShowParameters()
    {
        if (!hasParameters) return;
        Console.WriteLine("parameters " + string.Join(" ", client.Parameters().Select(one => Hex(one.Key) + " " + Hex(one.Value))));
    }

    private void Show(Array[] actions)
    {
        Console.WriteLine("actions " + string.Join(" ", actions.Select((leaf, i) => Hex(action[i].Pack(leaf, n)))));
        ShowParameters();
    }

    private void Perform(string command)
    {
        switch (command)
        {
            case "connect": Connect(); break;
            case "metric":
                string name = Text();
                client.Metric(name, Number(Word()));
                break;
            case "init":
                bool[] partial = Mask(), idle = Mask();
                Show(client.Init(Leaves(observation), partial, idle));
                break;
            case "step": Show(client.Step(ReadOutcome(true))); break;
            case "reset":
                Console.WriteLine("returns " + Hex(client.Reset(ReadOutcome(false))));
                break;
            default:
                client.Alive();
                Console.WriteLine("pong");
                break;
        }
    }

    public static void Main()
    {
        var play = new Play();
        bool over = false; // after a connection has ended, other commands are skipped
        for (string line = Console.ReadLine(); line != null; line = Console.ReadLine())
        {
            if (line == "end")
            {
                if (play.client != null) play.client.Dispose();
                Console.WriteLine("end");
                over = false;
            }
            if (over || line == "end") continue;
            play.words = new Queue<string>(line.Split(new[] { ' ' }, StringSplitOptions.RemoveEmptyEntries));
            try { play.Perform(play.Word()); }
            catch (ArgumentException e) { Console.WriteLine("invalid 8 " + e.Message); }
            catch (RlxException e)
            {
                over = true;
                Console.WriteLine((e.Meaning == Meaning.Finished ? "finished " + e.GlobalStep : "lost " + e.Code) + " " + e.Message);
            }
        }
    }
}
