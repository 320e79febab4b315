using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using Rlx;

/// <summary>
/// Tests beyond the golden message sequences: the example of section 13, invalid arguments, reconnecting, and changed
/// answers.
/// </summary>
public static class ClientTest
{
    private const string Welcome = "0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002";
    private const string Actions = "0000001312110a0f08091201011a080200000000000000";
    private const string Full = "000000152213080b120466756c6c180121000000000000e83f";
    private const string Over = "000000062a0410c0c407";
    // A welcome with out_of_step, and actions of two environments.
    private static readonly string Turns = With(Welcome, "3001");
    private static readonly string Two = "0000001b12190a1708091201021a10" + new string('0', 32);
    // A welcome with out_of_step and chosen_actions, and actions of a number for each of two environments.
    private static readonly string Taken = With(Turns, "3801");
    private static readonly string Pushes = "0000001312110a0f080b1201021a08" + new string('0', 16);
    private static readonly string Zeros = "000000141a120a10" + new string('0', 32);
    // A welcome with environment_parameters: gravity is 1 and 3, size is 2 and 4.
    private static readonly string Set = With(Welcome, "4001" + "4a0767726176697479" + "4a0473697a65" + Numbers(0x52, 1, 2, 3, 4));
    private static readonly Array[] Seen = { new float[] { 0, 0 } };
    // For observations that are larger than socket buffers, and with a heartbeat of 0.1 s.
    private const string Room = "0000002d0a2b08011a0273312204646133632a1d08ffffff7f110000000000c08240199a9999999999b93f208001288002";
    private static readonly Array[] Large = { new byte[8000000] };

    // A frame with more fields in its message, of less than 128 bytes.
    private static string With(string frame, string fields)
    {
        int size = (frame.Length + fields.Length) / 2 - 6;
        return (size + 2).ToString("x8") + frame.Substring(8, 2) + size.ToString("x2") + frame.Substring(12) + fields;
    }

    // A packed list of doubles in hexadecimal, with its tag.
    private static string Numbers(int tag, params double[] numbers)
    {
        return tag.ToString("x2") + (8 * numbers.Length).ToString("x2") + string.Concat(numbers.Select(v => Hex(BitConverter.GetBytes(v))));
    }

    private static string Hex(IEnumerable<byte> data) { return string.Concat(data.Select(one => one.ToString("x2"))); }

    private static byte[] Unhex(string digits)
    {
        return Enumerable.Range(0, digits.Length / 2).Select(i => Convert.ToByte(digits.Substring(2 * i, 2), 16)).ToArray();
    }

    /// <summary>Answers each request with the next frame of a script, one script for each connection, then disconnects.
    /// An entry may also be a function of the stream. To close with a request unread resets the connection: an empty
    /// frame reads one without an answer.</summary>
    private sealed class Server
    {
        private readonly TcpListener listener = new TcpListener(IPAddress.Loopback, 0);
        private readonly List<byte> told = new List<byte>();
        private readonly Thread thread;

        internal Server(params object[][] scripts)
        {
            listener.Start();
            thread = new Thread(() => { foreach (var script in scripts) Serve(script); }) { IsBackground = true };
            thread.Start();
        }

        internal string Address { get { return "127.0.0.1:" + ((IPEndPoint)listener.LocalEndpoint).Port; } }

        internal string Told()
        {
            thread.Join();
            listener.Stop();
            return Hex(told);
        }

        private void Serve(object[] script)
        {
            using (var client = listener.AcceptTcpClient())
            {
                client.NoDelay = true;
                var stream = client.GetStream();
                try
                {
                    foreach (object answer in script)
                    {
                        var deed = answer as Action<Stream>;
                        if (deed != null) deed(stream);
                        if (deed != null) continue;
                        for (int kind = 5; kind == 5 || kind >= 7;) kind = Frame(stream)[0] >> 3; // metrics, pongs, byes need no answer
                        Write(stream, (string)answer);
                    }
                }
                catch (IOException) { } // the client disconnected
            }
        }

        private byte[] Frame(Stream stream)
        {
            var head = Exactly(stream, 4);
            return Exactly(stream, head[0] << 24 | head[1] << 16 | head[2] << 8 | head[3]);
        }

        private byte[] Exactly(Stream stream, int size)
        {
            var data = new byte[size];
            for (int at = 0, got; at < size; at += got)
                if ((got = stream.Read(data, at, size - at)) == 0) throw new IOException("the end");
            told.AddRange(data);
            return data;
        }
    }

    private static void Write(Stream stream, string digits) { stream.Write(Unhex(digits), 0, digits.Length / 2); }

    private static void Check(bool right, object what)
    {
        if (!right) throw new Exception(what.ToString());
    }

    private static void Refused(Action action)
    {
        try { action(); }
        catch (ArgumentException) { return; }
        throw new Exception("it was not refused");
    }

    private static RlxException Thrown(Action action)
    {
        try { action(); }
        catch (RlxException e) { return e; }
        throw new Exception("nothing was thrown");
    }

    private static Config Point(params string[] addresses)
    {
        return new Config
        {
            Addresses = addresses, Environment = "Point-v0", RetrySeconds = -1,
            Observation = Space.Box(Dtype.Float32, new[] { 2 }), Action = Space.Discrete(3)
        };
    }

    private static Outcome Result(double reward, params float[] seen)
    {
        return new Outcome { Reward = new[] { reward }, Observation = seen.Length == 0 ? Seen : new Array[] { seen } };
    }

    private static void ExampleBytesOfSpecification()
    {
        var server = new Server(new[] { Welcome, Actions, Actions });
        using (var client = new Client(Point(server.Address)))
        {
            Check(((long[])client.Init(new Array[] { new[] { 0.5f, -0.25f } })[0])[0] == 2, "the action");
            Check(client.Session == "s1" && client.Algorithm == "da3c", "the welcome");
            client.Step(Result(1, 0.75f, 0));
        }
        string told = server.Told();
        foreach (string due in new[] { "380142070a05080b1201024a041202080350015a01016001", "0000001412120a10080b120201021a080000003f000080be",
                                       "0000001e1a1c0a08000000000000f03f1210080b120201021a080000403f00000000" })
            Check(told.Contains(due), due + " is not in " + told);
    }

    private static void InvalidArgumentsAreNotSent()
    {
        var server = new Server(new[] { Welcome, Actions });
        using (var client = new Client(Point(server.Address)))
        {
            Check(!client.Metric("before", 1), "there is no connection yet");
            Refused(() => client.Init(new Array[] { new[] { 0, float.NaN } }));
            client.Init(Seen);
            Refused(() => client.Init(Seen));
            foreach (double reward in new[] { 2e15, double.NaN }) Refused(() => client.Step(Result(reward)));
            Refused(() => client.Step(Result(1, 1f)));
            Refused(() => client.Step(new Outcome { Reward = new[] { 1.0 }, Observation = new Array[] { new double[2] } }));
            Refused(() => client.Step(new Outcome { Reward = new[] { 1.0 }, Observation = Seen, Terminated = new[] { true } }));
            Refused(() => client.Step(new Outcome { Reward = new[] { 1.0 }, Observation = Seen, FinalObservation = Seen }));
            var counted = Result(1);
            counted.Episodes.Add(new Episode { Environment = 0, Return = 1, Length = 1 });
            Refused(() => client.Step(counted));
            Refused(() => client.Reset(new Outcome { Reward = new[] { 1.0 }, Truncated = new[] { true } }));
            Refused(() => client.Metric("", 1));
            foreach (double value in new[] { double.NaN, 2e30 }) Refused(() => client.Metric("x", value));
        }
        Check(!server.Told().Contains("1a1c"), "a step was sent");
        foreach (var shape in new[] { new[] { 0 }, new[] { 65536, 65536 } })
            Refused(() => new Client(new Config { Addresses = new[] { "a:1" }, Action = Space.Discrete(2), Observation = Space.Box(Dtype.Float32, shape) }));
        foreach (string where in new[] { "localhost", "localhost:", ":1" }) Refused(() => new Client(Point(where)));
        Refused(() => new Client(Point()));
        var many = Point("a:1");
        many.Autoreset = new[] { Autoreset.Disabled, Autoreset.Disabled };
        Refused(() => new Client(many));
    }

    private static void Reconnects()
    {
        var server = new Server(new[] { Welcome, Actions, "" }, new[] { Full }, new[] { Welcome, Actions, Over });
        var config = Point(server.Address, server.Address);
        var reasons = new List<string>();
        config.RetrySeconds = 60;
        config.OnRetry = (reason, seconds) => reasons.Add(reason.Message);
        using (var client = new Client(config))
        {
            client.Init(Seen);
            Check(Thrown(() => client.Step(Result(1))).Meaning == Meaning.Interrupted, "the loss");
            var took = Stopwatch.StartNew();
            client.Init(Seen);
            Check(reasons.SequenceEqual(new[] { "the server's stream ended", "full" }), string.Join(", ", reasons));
            Check(took.ElapsedMilliseconds >= 1000, "at least 0.25 s, then the 0.75 s of the error");
            var end = Thrown(() => client.Step(Result(1)));
            Check(end.Meaning == Meaning.Finished && end.GlobalStep == 123456, end);
            Check(Thrown(() => client.Init(Seen)).Meaning == Meaning.Finished, "it came back");
        }
        Check(server.Told().Split(new[] { "6a027331" }, StringSplitOptions.None).Length == 3, "the session id in the hellos of the two reconnects");
    }

    private static void OneEntryForEachEnvironment()
    {
        var server = new Server(new[] { Welcome, Actions });
        var config = Point(server.Address);
        config.ReportsEpisodes = true;
        using (var client = new Client(config))
        {
            Refused(() => client.Init(Seen, new bool[2]));
            client.Init(Seen, new[] { true });
            var twice = Result(1);
            for (int i = 0; i < 2; i++) twice.Episodes.Add(new Episode { Environment = 0, Return = 1, Length = 1 });
            Refused(() => client.Step(twice));
        }
        Check(!server.Told().Contains("1a1c"), "a step was sent");
    }

    private static Config Players(Autoreset mode, string address)
    {
        var c = Point(address);
        c.Environments = 2;
        c.Autoreset = new[] { mode };
        c.OutOfStep = true;
        return c;
    }

    // The leaves of two environments. NaN: a void row.
    private static Array[] Rows(float one, float other) { return new Array[] { new[] { one, one, other, other } }; }

    // A mask of the form "01".
    private static bool[] Mask(string digits) { return digits.Select(one => one == '1').ToArray(); }

    private static Outcome Turn(Array[] observation, string idle = "00", string terminated = "00", string truncated = "00", Array[] final = null)
    {
        return new Outcome
        {
            Reward = new double[2], Observation = observation, Idle = Mask(idle), Terminated = Mask(terminated),
            Truncated = Mask(truncated), FinalObservation = final
        };
    }

    private static string Bits(float value) { return Hex(BitConverter.GetBytes(value)); }

    // The elements of a row in hexadecimal.
    private static string Row(float value) { return Bits(value) + Bits(value); }

    // Check that the server was told each of these pieces, in this order.
    private static void CheckOrder(string told, params string[] pieces)
    {
        int at = 0;
        foreach (string piece in pieces)
        {
            at = told.IndexOf(piece, at, StringComparison.Ordinal);
            Check(at >= 0, piece + " is not in its place in " + told);
            at += piece.Length;
        }
    }

    private static int Count(string told, string pattern) { return System.Text.RegularExpressions.Regex.Matches(told, pattern).Count; }

    private static void PlayersTakeTurns()
    {
        const float none = float.NaN;
        var server = new Server(new[] { Turns, Two, Two, Two, Two, Two });
        using (var client = new Client(Players(Autoreset.SameStep, server.Address)))
        {
            client.Init(Rows(1, none), null, Mask("01"));
            client.Step(Turn(Rows(none, 2), "10"));
            client.Step(Turn(Rows(3, none), "01"));
            client.Step(Turn(Rows(none, none), "11", "11"));
            client.Step(Turn(Rows(4, 5)));
        }
        CheckOrder(server.Told(), "5002" + "5a0102" + "6001" + "7801", Row(1) + Row(none) + "1a020001", Row(none) + Row(2) + "32020001" + "42020100",
            Row(3) + Row(none) + "42020001" + "0000", Row(none) + Row(none) + "1a020101" + "42020101" + "0000", Row(4) + Row(5) + "32020101");
    }

    private static void EnvironmentsThatLeaveHaveAnObservationWhereTheirModeHasIt()
    {
        const float none = float.NaN;
        var server = new Server(new[] { Turns, Two, Two, Two, Two, Zeros });
        using (var client = new Client(Players(Autoreset.NextStep, server.Address)))
        {
            client.Init(Rows(none, none), null, Mask("11"));
            Refused(() => client.Step(Turn(Rows(none, 1))));
            client.Step(Turn(Rows(1, 2)));
            Refused(() => client.Step(Turn(Rows(3, none), "11", "01")));
            client.Step(Turn(Rows(none, 3), "11", "01"));
            foreach (string idle in new[] { "00", "01" }) Refused(() => client.Step(Turn(Rows(4, 4), idle, "00", "01")));
            client.Step(Turn(Rows(4, none), "01"));
            Refused(() => client.Reset(Turn(null, "00", "00", "11", Rows(5, none))));
            client.Reset(Turn(null, "00", "00", "11", Rows(5, 6)));
        }
        CheckOrder(server.Told(), Row(none) + Row(none) + "1a020101", "32020101" + "0000", Row(none) + Row(3) + "1a020001" + "42020101" + "0000",
            Row(4) + Row(none) + "42020001" + "0000", "12020100");
        server = new Server(new[] { Turns, Two, Two, Two });
        using (var client = new Client(Players(Autoreset.SameStep, server.Address)))
        {
            client.Init(Rows(1, 1));
            foreach (var final in new[] { null, Rows(1, none) }) Refused(() => client.Step(Turn(Rows(none, none), "11", "00", "01", final)));
            client.Step(Turn(Rows(none, none), "11", "00", "01", Rows(none, 7)));
            client.Step(Turn(Rows(1, 8)));
        }
        CheckOrder(server.Told(), Row(none) + Row(none) + "22020001", Row(none) + Row(7) + "42020101", "32020001");
    }

    private static void IdleIsRefusedWhereItIsNotAllowed()
    {
        const float none = float.NaN;
        var server = new Server(new[] { Turns, Two, Two }, new[] { Welcome, Two });
        var config = Players(Autoreset.Disabled, server.Address);
        using (var client = new Client(config))
        {
            Refused(() => client.Init(Rows(1, 1), null, new bool[1]));
            client.Init(Rows(1, none), null, Mask("01"));
            Refused(() => client.Step(Turn(Rows(1, 1), "000")));
            foreach (string over in new[] { "10", "01" }) Refused(() => client.Step(Turn(Rows(1, 1), "11", over)));
            Refused(() => client.Step(Turn(Rows(none, 1), "01")));
            client.Step(Turn(Rows(none, none), "11"));
        }
        config.OutOfStep = false;
        using (var client = new Client(config))
        {
            Refused(() => client.Init(Rows(1, 1), null, Mask("01")));
            client.Init(Rows(1, 1), null, Mask("00"));
            Refused(() => client.Step(Turn(Rows(1, 1), "10")));
        }
        string told = server.Told();
        Check(Count(told, "000000(2e|3[0-9a-f])1a") == 1, "a refused step was sent: " + told);
        Check(Count(told, "60017801") == 1, "the hello of a client in step asks for out_of_step: " + told);
    }

    private static void WelcomeMustAgreeOnCapabilities()
    {
        var capabilities = new[] { "environments out of step", "actions of the client", "parameters of environments" };
        for (int k = 0; k < 3; k++)
            foreach (bool asked in new[] { true, false })
            {
                var server = new Server(new[] { asked ? Welcome : With(Welcome, (0x30 + 8 * k).ToString("x2") + "01"), Two });
                var config = Players(Autoreset.Disabled, server.Address);
                config.OutOfStep = asked && k == 0;
                config.ChosenActions = asked && k == 1;
                config.EnvironmentParameters = asked && k == 2;
                config.RetrySeconds = 60;
                using (var client = new Client(config))
                {
                    var failed = Thrown(() => client.Init(Rows(1, 1)));
                    Check(failed.Meaning == Meaning.Failed && failed.Code == (asked ? 6u : 8u), failed);
                    Check(failed.Message.Contains("does not support " + capabilities[k]) == asked, failed);
                }
                string reason = Hex(Encoding.ASCII.GetBytes(capabilities[k] + " are not supported"));
                Check(server.Told().Contains(reason) == asked, "the reason of the bye");
            }
    }

    // Each environment has one number as its action, from -1 to 1.
    private static Config Pushers(Autoreset mode, string address)
    {
        var c = Players(mode, address);
        c.Action = Space.Box(Dtype.Float32, new int[0], new[] { -1.0 }, new[] { 1.0 });
        c.ChosenActions = true;
        return c;
    }

    private static Outcome Choose(Outcome o, string chosen, params float[] actions)
    {
        o.Chosen = Mask(chosen);
        o.Action = new Array[] { actions };
        return o;
    }

    private static void ChosenActionsAreSent()
    {
        const float none = float.NaN;
        const string form = "0f080b1201021a08";
        var server = new Server(new[] { Taken, Pushes, Pushes, Pushes, Pushes, Pushes, Zeros });
        using (var client = new Client(Pushers(Autoreset.SameStep, server.Address)))
        {
            client.Init(Rows(1, 1));
            client.Step(Choose(Turn(Rows(2, none), "01"), "10", -1, none));
            client.Step(Choose(Turn(Rows(3, 3)), "01", none, 1)); // the action was in progress while 1 was idle
            client.Step(Choose(Turn(Rows(4, none), "01", "01"), "11", 0, 0.5f)); // 1 leaves
            client.Step(Choose(Turn(Rows(5, 5)), "00", none, none));
            client.Reset(Choose(Turn(null), "10", 0.25f, none));
        }
        string told = server.Told();
        CheckOrder(told, "7801" + "800101", "42020001" + "4a020100" + "52" + form + Bits(-1) + Bits(none),
            "4a020001" + "52" + form + Bits(none) + Bits(1), "42020001" + "4a020101" + "52" + form + Bits(0) + Bits(0.5f),
            Row(5) + Row(5) + "32020001" + "000000", "2a020100" + "32" + form + Bits(0.25f) + Bits(none));
        Check(Count(told, "4a020[01]0[01]") == 3, "an empty mask was sent: " + told);
    }

    private static void ChosenIsRefusedWhereItIsNotAllowed()
    {
        var server = new Server(new[] { Taken, Pushes, Pushes, Pushes, Pushes }, new[] { Turns, Pushes, Pushes });
        var config = Pushers(Autoreset.NextStep, server.Address);
        using (var client = new Client(config))
        {
            client.Init(Rows(1, 1));
            foreach (string chosen in new[] { "1", "111" }) Refused(() => client.Step(Choose(Turn(Rows(2, 2)), chosen, 0, 0)));
            foreach (float wrong in new[] { 1.5f, -1.5f, float.NaN }) Refused(() => client.Step(Choose(Turn(Rows(2, 2)), "01", 0, wrong)));
            Refused(() => client.Step(Choose(Turn(Rows(2, 2)), "01", 0)));
            foreach (var action in new[] { null, new Array[0], new Array[] { new double[2] } })
            {
                var o = Choose(Turn(Rows(2, 2)), "01");
                o.Action = action;
                Refused(() => client.Step(o));
            }
            Refused(() => client.Step(Choose(Turn(Rows(2, 2), "01"), "01", 0, 0))); // in progress
            client.Step(Turn(Rows(2, 2), "00", "10"));
            Refused(() => client.Step(Choose(Turn(Rows(3, 3)), "10", 0, 0))); // first
            Refused(() => client.Step(Choose(Turn(Rows(3, 3), "10"), "10", 0, 0))); // away
            Refused(() => client.Reset(Choose(Turn(null), "10", 0, 0)));
            client.Step(Turn(Rows(3, 3)));
        }
        config.ChosenActions = false;
        using (var client = new Client(config))
        {
            client.Init(Rows(1, 1));
            Refused(() => client.Step(Choose(Turn(Rows(2, 2)), "01", 0, 0)));
            Refused(() => client.Reset(Choose(Turn(null), "01", 0, 0)));
            client.Step(Choose(Turn(Rows(2, 2)), "00", 0, 0));
        }
        string told = server.Told();
        Check(Count(told, "(4a|2a)020[01]0[01]") == 0, "a refused action was sent: " + told);
        Check(Count(told, "7801800101") == 1, "a hello without ChosenActions asks for it: " + told);
    }

    private static void LongestMessageWithActionsMustFit()
    {
        // 8 bytes of actions, and twice 16 of observations.
        var server = new Server(new[] { Taken.Replace("08808040", "08a78000") });
        using (var client = new Client(Pushers(Autoreset.SameStep, server.Address))) Check(Thrown(client.Connect).Code == 9, "39 bytes");
        server.Told();
    }

    private static Config Worlds(string address)
    {
        var c = Players(Autoreset.SameStep, address);
        c.OutOfStep = false;
        c.EnvironmentParameters = true;
        c.RetrySeconds = 60;
        c.OnRetry = (reason, seconds) => { };
        return c;
    }

    private static void CheckParameters(Client client, params double[] due)
    {
        var found = client.Parameters();
        Check(found.Keys.SequenceEqual(new[] { "gravity", "size" }), string.Join(", ", found.Keys));
        Check(found.SelectMany(one => one.Value).SequenceEqual(due), string.Join(", ", found.SelectMany(one => one.Value)));
    }

    private static void ParametersAreReadBeforeEpisodes()
    {
        const string partial = "12020101";
        string changed = With(Two, "120101" + Numbers(0x1a, 5, 6));
        var server = new Server(new[] { Set, changed, Two, Zeros, "" }, new[] { Set, Two, "" }, new[] { Set, Two, Zeros, Two });
        using (var client = new Client(Worlds(server.Address)))
        {
            CheckParameters(client, 1, 3, 2, 4); // it connects
            client.Init(Rows(1, 1));
            CheckParameters(client, 1, 5, 2, 6);
            client.Step(Turn(Rows(2, 2)));
            client.Reset(Turn(null));
            CheckParameters(client, 1, 5, 2, 6);
            client.Init(Rows(3, 3)); // lost: the next connection has other parameters
            Check(Thrown(() => client.Step(Turn(Rows(4, 4)))).Meaning == Meaning.Interrupted, "the loss");
            CheckParameters(client, 1, 3, 2, 4);
            client.Init(Rows(5, 5));
            client.Reset(Turn(null));
            client.Init(Rows(6, 6));
        }
        string told = server.Told();
        CheckOrder(told, "6001" + "880101", Row(1) + Row(1), Row(3) + Row(3), Row(3) + Row(3) + partial, Row(5) + Row(5), Row(6) + Row(6));
        Check(Count(told, partial) == 1, "other episodes are partial: " + told);
        using (var client = new Client(Point("a:1"))) Refused(() => client.Parameters());
    }

    private static void NoParametersNeedNoReading()
    {
        var server = new Server(new[] { With(Welcome, "4001"), Two });
        using (var client = new Client(Worlds(server.Address)))
        {
            client.Init(Rows(1, 1));
            Check(client.Parameters().Count == 0, "there are none");
        }
        Check(!server.Told().Contains("12020101"), "the episodes are not partial");
    }

    private static void WrongParametersAreMistakesOfTheServer()
    {
        var names = new Dictionary<string, uint> { { "4a00", 8 }, { "4a01614a0161", 8 }, { "4a01614a0109", 8 }, { "4a01614a01ff", 1 } };
        foreach (var wrong in names)
        {
            string values = Numbers(0x52, new double[wrong.Key.Length > 4 ? 4 : 2]);
            var server = new Server(new[] { With(Welcome, "4001" + wrong.Key + values) });
            using (var client = new Client(Worlds(server.Address)))
                Check(Thrown(client.Connect).Code == wrong.Value, wrong.Key);
            server.Told();
        }
        foreach (string wrong in new[] { "12020100" + Numbers(0x1a, 1, 2, 3, 4), "120102" + Numbers(0x1a, 1, 2), "120100" + Numbers(0x1a, 1),
                                         "120100" + Numbers(0x1a, 1, double.NaN), Numbers(0x1a, 1) })
        {
            var server = new Server(new[] { Set, With(Two, wrong) });
            using (var client = new Client(Worlds(server.Address)))
                Check(Thrown(() => client.Init(Rows(1, 1))).Code == 8, wrong);
            server.Told();
        }
        foreach (string wrong in new[] { "120100", Numbers(0x1a, 1) })
        {
            var server = new Server(new[] { Welcome, With(Actions, wrong) });
            using (var client = new Client(Point(server.Address))) Check(Thrown(() => client.Init(Seen)).Code == 8, wrong);
            server.Told();
        }
    }

    private static void LongHelloOmitsBoundsOrIsRefused()
    {
        var ones = Enumerable.Repeat(1.0, 5000).ToArray();
        var bounded = Space.Box(Dtype.Float32, new[] { 5000 }, ones, ones);
        var wrong = Point("a:1");
        wrong.Action = bounded;
        Refused(() => new Client(wrong));
        var server = new Server(new[] { Welcome, Actions });
        var config = Point(server.Address);
        config.Observation = bounded;
        using (var client = new Client(config)) client.Init(new Array[] { new float[5000] });
        Check(server.Told().StartsWith("000000"), "a short hello");
    }

    private static void LastMessageIsReportedBeforeAStep()
    {
        using (var played = new ManualResetEvent(false))
        using (var said = new ManualResetEvent(false))
        {
            Action<Stream> finish = stream =>
            {
                played.WaitOne();
                Write(stream, Over);
                said.Set();
            };
            var server = new Server(new object[] { Welcome, Actions, finish, Actions });
            using (var client = new Client(Point(server.Address)))
            {
                client.Init(Seen);
                played.Set();
                said.WaitOne();
                Check(Thrown(() => client.Step(Result(1))).Meaning == Meaning.Finished, "the end of training");
            }
            Check(!server.Told().Contains("1a1c"), "a step was sent");
        }
    }

    private static RlxException LostWith(Server server)
    {
        var config = Point(server.Address);
        config.Observation = Space.Box(Dtype.UInt8, new[] { 8000000 });
        using (var client = new Client(config))
        {
            client.Init(Large);
            return Thrown(() => client.Step(new Outcome { Reward = new[] { 1.0 }, Observation = Large }));
        }
    }

    private static void LastMessageIsReportedWhenAWriteFails()
    {
        foreach (string word in new[] { Over, Full, "" })
        {
            Action<Stream> leave = stream =>
            {
                stream.Read(new byte[4], 0, 4);
                Write(stream, "000000023200" + word);
            };
            var server = new Server(new object[] { Room, Actions, leave });
            var lost = LostWith(server);
            Check(lost.Meaning == (word == Over ? Meaning.Finished : Meaning.Interrupted), lost);
            Check(lost.RetryAfter == (word == Full ? 0.75 : 0), lost);
            server.Told();
        }
    }

    private static void ServerThatDoesNotReceiveIsDisconnected()
    {
        using (var over = new ManualResetEvent(false))
        {
            Action<Stream> wait = stream => over.WaitOne();
            var server = new Server(new object[] { Room, Actions, wait });
            var took = Stopwatch.StartNew();
            Check(LostWith(server).Meaning == Meaning.Interrupted, "the loss");
            Check(took.ElapsedMilliseconds < 50000, "it waited as long as before the welcome");
            over.Set();
            server.Told();
        }
    }

    private static void MistakesOfTheServer()
    {
        var scripts = new[]
        {
            new[] { Welcome.Replace("7331", "730a") }, new[] { Full.Replace("e83f", "e8bf") }, new[] { Welcome, "0002000001" }
        };
        for (int i = 0; i < scripts.Length; i++)
        {
            var server = new Server(scripts[i]);
            using (var client = new Client(Point(server.Address)))
            {
                var failed = Thrown(() => client.Init(Seen));
                Check(failed.Meaning == Meaning.Failed && failed.Code == (i < 2 ? 8u : 2u), failed);
            }
            server.Told();
        }
    }

    private static void EveryAddressOfAHostIsTried()
    {
        if (!Socket.OSSupportsIPv6) return;
        var listener = new TcpListener(IPAddress.IPv6Loopback, 0);
        try { listener.Start(); }
        catch (SocketException) { return; } // this machine has no such address
        var server = new Thread(() => { using (var client = listener.AcceptTcpClient()) Write(client.GetStream(), Over); });
        server.Start();
        using (var client = new Client(Point("[::1]:" + ((IPEndPoint)listener.LocalEndpoint).Port)))
            Check(Thrown(client.Connect).Meaning == Meaning.Finished, "over IPv6");
        server.Join();
        listener.Stop();
    }

    private static void ChangedAnswersAreAcceptedOrRefused()
    {
        var random = new Random(1);
        int understood = 0, refused = 0;
        var leaves = Space.Discrete(3).Leaves();
        for (int round = 0; round < 100000; round++)
        {
            var data = Unhex((round % 2 == 0 ? Welcome : Actions).Substring(12));
            for (int changes = random.Next(4); changes > 0 && data.Length > 0; changes--)
            {
                int at = random.Next(data.Length);
                if (random.Next(4) > 0) data[at] = (byte)random.Next(256);
                else Array.Resize(ref data, at + random.Next(3));
            }
            try
            {
                var m = new Message(new ArraySegment<byte>(data));
                if (round % 2 == 0) new Message(m.All(5)).Double(3);
                else m.Actions(leaves, 1);
                understood++;
            }
            catch (WrongBytes) { refused++; }
        }
        Check(understood > 1000 && refused > 1000, understood + " " + refused);
    }

    private static long First(Array[] actions) { return ((long[])actions[0])[0]; }

    private static async Task<double> PlayAsync(Client client)
    {
        var seen = new float[2];
        var init = client.InitAsync(new Array[] { seen });
        seen[0] = float.NaN; // the arguments were copied
        Check(First(await init) == 2, "the first action");
        Check(First(await client.StepAsync(Result(1))) == 2, "the next action");
        return (await client.ResetAsync(Result(2)))[0];
    }

    private static void TasksDoNotBlock()
    {
        string zero = "0000000c1a0a0a08" + new string('0', 16);
        using (var asked = new ManualResetEvent(false))
        {
            Action<Stream> wait = stream => asked.WaitOne();
            var server = new Server(new object[] { Welcome, wait, Actions, Actions, zero, Actions, wait, Actions, zero });
            using (var client = new Client(Point(server.Address)))
            {
                var play = PlayAsync(client);
                Check(!play.IsCompleted && !client.IsCompleted, "it waited for the server");
                foreach (var call in new Action[] { () => client.Init(Seen), () => client.Connect(), () => client.Step(Result(1)), () => client.Alive(),
                                                    () => client.StepAsync(Result(1)), () => client.BeginConnect() })
                    Refused(call);
                asked.Set();
                Check(play.Result == 0 && client.IsCompleted, "the return");
                asked.Reset();
                client.Init(Seen);
                client.BeginStep(Result(1));
                Check(!client.IsCompleted, "it waited for the server");
                Check(client.Metric("meanwhile", 1), "a metric during a call");
                Refused(() => client.EndReset());
                asked.Set();
                while (!client.IsCompleted) Thread.Yield();
                Check(First(client.EndStep()) == 2, "the action");
                Refused(() => client.BeginInit(Seen));
                client.BeginReset(Result(1));
                Check(client.EndReset()[0] == 0, "it waited for the answer");
            }
            Check(server.Told().Contains(Hex(Encoding.ASCII.GetBytes("meanwhile"))), "the metric was sent");
        }
    }

    private static void ErrorsOfTasksAreThoseOfTheCalls()
    {
        var server = new Server(new[] { Welcome, Actions, Over });
        using (var client = new Client(Point(server.Address)))
        {
            Refused(() => client.InitAsync(new Array[] { new[] { 0, float.NaN } }));
            client.BeginInit(Seen);
            client.EndInit();
            Refused(() => client.StepAsync(Result(double.NaN)));
            client.BeginStep(Result(1));
            Check(Thrown(() => client.EndStep()).GlobalStep == 123456, "the end of training");
            Check(Thrown(() => client.ConnectAsync().GetAwaiter().GetResult()).Meaning == Meaning.Finished, "it came back");
        }
        server.Told();
        using (var client = new Client(Point("127.0.0.1:1")))
        {
            client.BeginConnect();
            Check(Thrown(client.EndConnect).Meaning == Meaning.Failed, "no server");
        }
    }

    private static void Cancelled(Task task)
    {
        try { task.GetAwaiter().GetResult(); }
        catch (OperationCanceledException) { return; }
        throw new Exception("it was not cancelled");
    }

    private static void CancelledCallsEndAndTheNextInitConnects()
    {
        using (var over = new ManualResetEvent(false))
        using (var got = new ManualResetEvent(false))
        {
            Action<Stream> wait = stream =>
            {
                got.Set();
                over.WaitOne();
            };
            var server = new Server(new object[] { Welcome, Actions, wait }, new object[] { Welcome, Actions });
            var config = Point(server.Address);
            config.OnRetry = (reason, seconds) => { throw new Exception("it waited after " + reason.Message); };
            using (var client = new Client(config))
            {
                Cancelled(client.ConnectAsync(new CancellationToken(true)));
                client.Init(Seen);
                var stop = new CancellationTokenSource();
                var step = client.StepAsync(Result(1), stop.Token);
                got.WaitOne();
                Check(!step.IsCompleted, "there is an answer");
                stop.Cancel();
                Cancelled(step);
                Check(Thrown(() => client.Step(Result(1))).Meaning == Meaning.Interrupted, "the connection is lost");
                over.Set();
                client.Init(Seen);
            }
            server.Told();
        }
    }

    private static void WaitsBetweenRetriesAreCancelled()
    {
        var config = Point("127.0.0.1:1");
        config.RetrySeconds = 1e6;
        using (var waiting = new ManualResetEvent(false))
        using (var stop = new CancellationTokenSource())
        {
            int tries = 0;
            config.OnRetry = (reason, seconds) =>
            {
                tries++;
                waiting.Set();
            };
            using (var client = new Client(config))
            {
                var init = client.InitAsync(Seen, null, null, stop.Token);
                waiting.WaitOne();
                stop.Cancel();
                Cancelled(init);
                tries = 0;
                client.BeginInit(Seen);
                while (tries < 3) Thread.Sleep(10); // the fourth wait is of 2 s at least
                var took = Stopwatch.StartNew();
                client.Dispose();
                Check(took.ElapsedMilliseconds < 30000, "Dispose waited for the retries");
                try { client.EndInit(); }
                catch (OperationCanceledException) { return; }
            }
        }
        throw new Exception("Dispose did not cancel the call");
    }

    public static void Main()
    {
        ExampleBytesOfSpecification();
        InvalidArgumentsAreNotSent();
        Reconnects();
        OneEntryForEachEnvironment();
        PlayersTakeTurns();
        EnvironmentsThatLeaveHaveAnObservationWhereTheirModeHasIt();
        IdleIsRefusedWhereItIsNotAllowed();
        WelcomeMustAgreeOnCapabilities();
        ChosenActionsAreSent();
        ChosenIsRefusedWhereItIsNotAllowed();
        LongestMessageWithActionsMustFit();
        ParametersAreReadBeforeEpisodes();
        NoParametersNeedNoReading();
        WrongParametersAreMistakesOfTheServer();
        LongHelloOmitsBoundsOrIsRefused();
        LastMessageIsReportedBeforeAStep();
        LastMessageIsReportedWhenAWriteFails();
        ServerThatDoesNotReceiveIsDisconnected();
        MistakesOfTheServer();
        EveryAddressOfAHostIsTried();
        TasksDoNotBlock();
        ErrorsOfTasksAreThoseOfTheCalls();
        CancelledCallsEndAndTheNextInitConnects();
        WaitsBetweenRetriesAreCancelled();
        ChangedAnswersAreAcceptedOrRefused();
        Console.WriteLine("all passed");
    }
}
