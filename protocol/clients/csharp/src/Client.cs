using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Security;
using System.Net.Sockets;
using System.Runtime.CompilerServices;
using System.Security.Authentication;
using System.Text.RegularExpressions;
using System.Threading;
using System.Threading.Tasks;

[assembly: InternalsVisibleTo("Rlx.Unity")] // makes an RlxException

namespace Rlx
{
    /// <summary>What an RlxException means for the caller.</summary>
    public enum Meaning
    {
        /// <summary>The connection and its episodes are lost. Reset the environments and call Init, which reconnects.</summary>
        Interrupted,
        /// <summary>Training has finished.</summary>
        Finished,
        /// <summary>A retry is useless, or the retries took too long.</summary>
        Failed
    }

    /// <summary>
    /// The error of a call. Invalid arguments throw an ArgumentException: nothing was sent, and the connection remains
    /// open.
    /// </summary>
    public sealed class RlxException : Exception
    {
        /// <summary>What the error means for the caller.</summary>
        public Meaning Meaning { get; private set; }
        /// <summary>An error code of RLX.md, section 9, or 0.</summary>
        public ulong Code { get; private set; }
        /// <summary>The global step, with Finished.</summary>
        public ulong GlobalStep { get; private set; }
        internal readonly double RetryAfter;

        internal RlxException(Meaning meaning, ulong code, string sentence, ulong globalStep = 0, double retryAfter = 0) : base(sentence)
        {
            Meaning = meaning;
            Code = code;
            GlobalStep = globalStep;
            RetryAfter = retryAfter;
        }
    }

    /// <summary>The autoreset mode of an environment: how its next episode begins.</summary>
    public enum Autoreset { Disabled = 1, SameStep, NextStep }

    /// <summary>Whether the agent learns from this client, or only acts.</summary>
    public enum Mode { Train = 1, Exploit }

    /// <summary>A whole episode, as the client counts it.</summary>
    public struct Episode
    {
        public int Environment;
        public double Return;
        public int Length;
    }

    /// <summary>The configuration of a client. Fields that are not set have defaults.</summary>
    public sealed class Config
    {
        /// <summary>HOST:PORT, or several. After each failure the client tries the next one.</summary>
        public string[] Addresses = new string[0];
        public Space Observation, Action;
        /// <summary>The number of environments, N.</summary>
        public int Environments = 1;
        /// <summary>One mode for all environments, or N.</summary>
        public Autoreset[] Autoreset = { Rlx.Autoreset.Disabled };
        public Mode Mode = Mode.Train;
        public string Token = "", Environment = "", Host = "", SessionId = "";
        public int FrameSkip = 1;
        public bool ReportsEpisodes;
        /// <summary>Whether calls may mark environments as idle. The server and its algorithm must support it.</summary>
        public bool OutOfStep;
        /// <summary>Whether outcomes may have actions that the client chose. The server and its algorithm must support it.</summary>
        public bool ChosenActions;
        /// <summary>Whether the server sets numbers for each episode: see Parameters. The server must support it.</summary>
        public bool EnvironmentParameters;
        /// <summary>How long to retry after a failure, in seconds. Below 0: do not retry.</summary>
        public double RetrySeconds = 300;
        /// <summary>Called before each wait with the reason and the seconds.</summary>
        public Action<RlxException, double> OnRetry = (reason, seconds) => Console.Error.WriteLine(
            string.Format(CultureInfo.InvariantCulture, "RLX: {0}; trying again in {1:F1} s", reason.Message, seconds));
        /// <summary>Whether to use TLS.</summary>
        public bool Tls;
        /// <summary>Checks the server's certificate. null: the system checks it, and the host's name.</summary>
        public RemoteCertificateValidationCallback Trust;
    }

    /// <summary>The outcome of the last actions. A mask may be null: all false.</summary>
    public sealed class Outcome
    {
        /// <summary>N rewards.</summary>
        public double[] Reward;
        /// <summary>Not used by Reset.</summary>
        public Array[] Observation;
        /// <summary>Not used by Reset.</summary>
        public bool[] Terminated;
        public bool[] Truncated;
        /// <summary>The environments that want no action. Requires OutOfStep. Not used by Reset.</summary>
        public bool[] Idle;
        /// <summary>Rows of ended episodes, with SameStep. Required if an episode was truncated, also in Reset.</summary>
        public Array[] FinalObservation;
        public List<Episode> Episodes = new List<Episode>();
        /// <summary>The environments that took an action of the client instead of the agent's. Requires ChosenActions.</summary>
        public bool[] Chosen;
        /// <summary>The leaves of the actions that the client chose. Other rows are ignored.</summary>
        public Array[] Action;
    }

    /// <summary>
    /// A client of RLX, version 1 (protocol/RLX.md): it connects N environments to their agent. Use it from one thread. It encodes Protobuf
    /// itself and needs only .NET Standard 2.0. Observations and actions are arrays of leaves; a leaf is an array with the
    /// numbers of all environments, in their order: float[] for Float32, long[] for a discrete, and so on.
    /// Init, Step and Reset wait for the server. InitAsync, StepAsync and ResetAsync return a task (AsyncClient.cs), and
    /// BeginInit, BeginStep and BeginReset are for loops that ask IsCompleted.
    /// </summary>
    public sealed partial class Client : IDisposable
    {
        /// <summary>The client's version.</summary>
        public const string Version = "1.0.0";

        private const uint Hello = 1, InitKind = 2, StepKind = 3, ResetKind = 4, Metrics = 5, Ping = 6, Pong = 7, Bye = 8;
        private const uint Welcome = 1, Actions = 2, Returns = 3, Error = 4, Finished = 5;
        private const int UnsupportedSpace = 6;
        private const int HandshakeBytes = 65536, Slice = 65536;
        private const string SpeaksGrpc = "this port speaks gRPC, like the ports of parameter and replay servers: "
            + "connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)";
        // The capabilities in the order of their fields on the wire, and the fields of Config that ask for them.
        private static readonly string[] Capabilities = { "environments out of step", "actions of the client", "parameters of environments" };
        private static readonly string[] Flags = { "OutOfStep", "ChosenActions", "EnvironmentParameters" };
        // The start of a gRPC server's stream, after 3 bytes. No RLX payload begins with a zero byte.
        private static readonly byte[] Settings = { 4, 0, 0, 0, 0, 0 };

        private readonly Config config;
        private readonly int n;
        private readonly bool[] wanted;
        private readonly Leaf[] observation, action;
        private readonly HashSet<string> names = new HashSet<string>();
        private readonly Random random = new Random();
        private volatile TcpClient tcp; // another thread closes it to cancel a call
        private volatile Stream stream;
        private bool playing, answered, gone, told; // told: whether the caller has this connection's parameters
        private RlxException lost, end;
        private int address, failures, from, to;
        private long limit, most;
        private ulong nameBytes, nameLimit;
        private Stopwatch since, left;
        private byte[] buffer = new byte[HandshakeBytes];
        private Part scalars = new Part();
        private bool[] away, awayNext, first, hidden, hiddenFinal, hiddenAction, cut;
        private Array[] actions;
        private string[] parameterNames = new string[0];
        private double[] parameters;
        private double[] returns;

        /// <summary>The session id of the latest welcome.</summary>
        public string Session { get; private set; }

        /// <summary>The name of the algorithm that acts.</summary>
        public string Algorithm { get; private set; }

        /// <summary>Make a client. It does not connect yet.</summary>
        public Client(Config config)
        {
            this.config = config;
            n = config.Environments;
            wanted = new[] { config.OutOfStep, config.ChosenActions, config.EnvironmentParameters };
            observation = config.Observation.Leaves();
            action = config.Action.Leaves();
            Session = config.SessionId;
            Algorithm = "";
            if (!BitConverter.IsLittleEndian) throw new PlatformNotSupportedException("this client requires a little-endian machine");
            if (n < 1 || n > 65536 || (config.Autoreset.Length != 1 && config.Autoreset.Length != n))
                throw new ArgumentException(n + " environments: use 1 to 65536, and one autoreset mode for all or for each");
            if (config.Addresses.Length == 0 || !config.Addresses.All(one => Regex.IsMatch(one, @"\A\S+:[0-9]{1,5}\z")))
                throw new ArgumentException("the addresses '" + string.Join(",", config.Addresses) + "': use HOST:PORT, or several");
            away = new bool[n];
            awayNext = new bool[n];
            first = new bool[n];
            hidden = new bool[n];
            hiddenFinal = new bool[n];
            hiddenAction = new bool[n];
            cut = new bool[n];
            limit = HandshakeBytes;
            Framed(Hello, HelloOf(true));
        }

        // The current address.
        private string Where { get { return config.Addresses[address % config.Addresses.Length]; } }

        private Autoreset Habit(int i) { return config.Autoreset[config.Autoreset.Length == 1 ? 0 : i]; }

        /// <summary>Connect now. Otherwise the first Init connects.</summary>
        public void Connect()
        {
            CheckFree();
            Open();
        }

        private void Open()
        {
            while (stream == null)
            {
                if (end != null) throw end;
                var reason = lost;
                lost = null;
                if (reason != null) BackOff(reason);
                try { Attempt(); }
                catch (RlxException e)
                {
                    if (e.Meaning != Meaning.Interrupted) throw;
                    lost = e;
                }
            }
        }

        /// <summary>
        /// Return the server's parameters for the next episode of each environment: N values for each name. Connects if
        /// necessary. Call it before an environment begins an episode. Requires EnvironmentParameters.
        /// </summary>
        public Dictionary<string, double[]> Parameters()
        {
            CheckFree();
            if (!config.EnvironmentParameters) throw new ArgumentException("to receive parameters, set EnvironmentParameters to true");
            Open();
            told = true;
            int size = parameterNames.Length;
            return Enumerable.Range(0, size).ToDictionary(at => parameterNames[at],
                at => Enumerable.Range(0, n).Select(i => parameters[i * size + at]).ToArray());
        }

        /// <summary>
        /// Begin an episode in every environment and return the first actions. partial: null, or true where an episode
        /// continues. idle: null, or true where an environment is away and its observation void; requires OutOfStep.
        /// All episodes are sent as partial if the server sets parameters, and they were not read since the client connected.
        /// </summary>
        public Array[] Init(Array[] observation, bool[] partial = null, bool[] idle = null) { return InitCall(observation, partial, idle)(); }

        /// <summary>
        /// Send an outcome and return the next actions. The client sets `first`: the reward of an environment that was
        /// between two episodes is void. The rows of idle environments are void, except those of an episode that ends.
        /// </summary>
        public Array[] Step(Outcome o) { return StepCall(o)(); }

        /// <summary>End the episode of every environment and return their returns.</summary>
        public double[] Reset(Outcome o) { return ResetCall(o)(); }

        // Check the arguments, and return a function that sends them and waits for the answer.
        private Func<Array[]> InitCall(Array[] observation, bool[] partial, bool[] idle)
        {
            CheckFree();
            if (playing) throw new ArgumentException("an episode is in progress: call Reset first");
            if (partial != null && partial.Length != n) throw new ArgumentException("partial has " + n + " entries");
            CheckMarks("idle", idle, config.OutOfStep, "OutOfStep");
            var absent = idle == null ? new bool[n] : (bool[])idle.Clone();
            var seen = Pack(observation, absent);
            partial = partial == null ? null : (bool[])partial.Clone();
            return () =>
            {
                while (true)
                {
                    Open();
                    try
                    {
                        Hear(0);
                        var continued = told || parameterNames.Length == 0 ? partial : Enumerable.Repeat(true, n).ToArray();
                        Ask(InitKind, new Part().Leaves(1, this.observation, seen, n).Mask(2, continued).Mask(3, absent), Actions);
                        away = absent;
                        return actions;
                    }
                    catch (RlxException e)
                    {
                        if (e.Meaning != Meaning.Interrupted || cancel.IsCancellationRequested) throw;
                    }
                }
            };
        }

        private Func<Array[]> StepCall(Outcome o)
        {
            CheckFree();
            Check(o, true);
            var content = new Part().Doubles(1, o.Reward).Leaves(2, observation, Pack(o.Observation, hidden), n);
            content.Mask(3, o.Terminated).Mask(4, cut);
            content.Leaves(5, observation, o.FinalObservation == null ? null : Pack(o.FinalObservation, hiddenFinal), n);
            content.Mask(6, first).Episodes(7, o.Episodes).Mask(8, o.Idle).Mask(9, o.Chosen).Leaves(10, action, PackAction(o), n);
            return () =>
            {
                Hear(0);
                Ask(StepKind, content, Actions);
                away = (bool[])awayNext.Clone();
                return actions;
            };
        }

        private Func<double[]> ResetCall(Outcome o)
        {
            CheckFree();
            Check(o, false);
            var content = new Part().Doubles(1, o.Reward).Mask(2, cut);
            content.Leaves(3, observation, o.FinalObservation == null ? null : Pack(o.FinalObservation), n).Episodes(4, o.Episodes);
            content.Mask(5, o.Chosen).Leaves(6, action, PackAction(o), n);
            return () =>
            {
                Hear(0);
                Ask(ResetKind, content, Returns);
                return returns;
            };
        }

        /// <summary>Add a scalar to the next message, with a valid name ("a b" becomes a_b). It may be called while a call is in
        /// progress. Returns false if it is dropped: there is no connection, or it exceeds the server's limits.</summary>
        public bool Metric(string name, double value)
        {
            if (name.Length == 0 || !(Math.Abs(value) <= 1e30))
                throw new ArgumentException("metric '" + name + "', " + value + ": use a name and a value from -1e30 to 1e30");
            name = Regex.Replace(name, @"[\uD800-\uDBFF][\uDC00-\uDFFF]|[^A-Za-z0-9_./-]|^/", "_");
            lock (names)
            {
                if (stream == null || (ulong)name.Length > nameBytes || scalars.Length > 65536) return false;
                if (!names.Contains(name) && (ulong)names.Count >= nameLimit) return false;
                names.Add(name);
                scalars.Raw(new Part().Nested(1, new Part().Text(1, name).Double(2, value)).Frame(Metrics));
                return true;
            }
        }

        /// <summary>Send a ping, for environments that are slower than the server's idle timeout.</summary>
        public void Alive()
        {
            CheckFree();
            Ask(Ping, new Part().Integer(1, 1), Pong);
        }

        /// <summary>Send bye and disconnect. A call in progress has a second to complete, then it is cancelled.</summary>
        public void Dispose()
        {
            EndThread();
            try
            {
                if (stream == null) return;
                Patience(0.5);
                Send(Bye, new Part());
                tcp.Client.Shutdown(SocketShutdown.Send);
                left = Stopwatch.StartNew();
                while (left.ElapsedMilliseconds < 1000 && stream.Read(buffer, 0, buffer.Length) > 0) { }
            }
            catch (Exception e) when (e is RlxException || Broken(e)) { } // the connection is closing
            finally { HangUp(); }
        }

        private void HangUp()
        {
            try { if (stream != null) stream.Dispose(); }
            catch (Exception e) when (Broken(e)) { } // the connection is closing
            if (tcp != null) tcp.Close();
            stream = null;
            tcp = null;
            playing = gone = false;
            from = to = 0;
            lock (names) scalars = new Part();
        }

        // Whether the exception means a lost connection. Over TLS Mono wraps it.
        private static bool Broken(Exception e)
        {
            return e is IOException || e is SocketException || e is AggregateException || e is AuthenticationException || e is ObjectDisposedException;
        }

        // Set the timeout of reads and writes.
        private void Patience(double seconds) { tcp.ReceiveTimeout = tcp.SendTimeout = (int)(1000 * seconds); }

        private RlxException Interrupted(ulong code, string sentence, double retryAfter = 0)
        {
            HangUp();
            return lost = new RlxException(Meaning.Interrupted, code, sentence, 0, retryAfter);
        }

        // Disconnect after a mistake of the server. Reconnect only if an `init` was answered on this connection (section 9).
        private RlxException Mistake(int code, string what)
        {
            SayBye(what);
            if (answered || gone) return Interrupted((ulong)code, "the server's mistake: " + what);
            HangUp();
            return new RlxException(Meaning.Failed, (ulong)code, Where + ": the server's mistake: " + what + ": is it an RLX server?");
        }

        private void SayBye(string reason)
        {
            var frame = new Part().Text(1, reason).Frame(Bye);
            try { stream.Write(frame, 0, frame.Length); }
            catch (Exception e) when (Broken(e)) { } // the connection is closed next
        }

        private byte[] Framed(uint kind, Part content)
        {
            var frame = content.Frame(kind);
            if (frame.Length - 4 <= limit) return frame;
            throw new ArgumentException("a message of " + (frame.Length - 4) + " bytes; the server accepts at most " + limit);
        }

        // Write the pending scalars and a message in one call.
        private void Send(uint kind, Part content)
        {
            if (stream == null) throw end ?? lost ?? Interrupted(0, "there is no connection");
            var frame = Framed(kind, content);
            lock (names)
            {
                if (scalars.Length > 0) frame = scalars.Raw(frame).ToArray();
                scalars = new Part();
            }
            Write(frame);
        }

        private void Write(byte[] data)
        {
            var slow = tcp;
            try
            {
                // the system buffers 16 KiB at once, because the server has answered all earlier messages. More needs a
                // timer, because Mono ignores SendTimeout over TLS.
                for (int at = 0; at < data.Length; at += Slice)
                    using (data.Length > 16384 ? new Timer(_ => slow.Close(), null, slow.SendTimeout, Timeout.Infinite) : null)
                        stream.Write(data, at, Math.Min(Slice, data.Length - at));
            }
            catch (Exception e) when (Broken(e)) // the server may have sent the reason
            {
                gone = true;
                left = Stopwatch.StartNew();
                try
                {
                    Patience(0.5);
                    Hear(Finished);
                }
                catch (ObjectDisposedException) { throw Interrupted(0, "the server does not receive"); }
            }
        }

        // The next frame. Array is null if it has not arrived. Its length is checked before its body is read.
        private ArraySegment<byte> Frame()
        {
            if (to - from < 4) return default(ArraySegment<byte>);
            if (!answered && to - from >= 9 && buffer.Skip(from + 3).Take(6).SequenceEqual(Settings))
            {
                HangUp();
                throw new RlxException(Meaning.Failed, Message.Malformed, Where + ": " + SpeaksGrpc);
            }
            long size = (long)buffer[from] << 24 | (long)buffer[from + 1] << 16 | (long)buffer[from + 2] << 8 | buffer[from + 3];
            if (size == 0) throw Mistake(Message.Malformed, "a frame of length 0");
            if (size > most || size > int.MaxValue - 64) throw Mistake(2, "a frame of " + size + " bytes; the limit is " + most);
            if (to - from < 4 + size)
            {
                int room = (int)Math.Min(4 + size, 2L * (to - from)); // grows with the data received, not with the announced length
                if (buffer.Length < room) Array.Resize(ref buffer, room);
                return default(ArraySegment<byte>);
            }
            var frame = new ArraySegment<byte>(buffer, from + 4, (int)size);
            from += 4 + (int)size;
            return frame;
        }

        // Read and process frames until the expected answer arrives. 0: process what has arrived, without waiting.
        private void Hear(uint due)
        {
            while (true)
            {
                for (var frame = Frame(); frame.Array != null; frame = Frame())
                    if (Look(frame, due) && due != 0) return;
                Buffer.BlockCopy(buffer, from, buffer, 0, to - from);
                to -= from;
                from = 0;
                int size;
                try
                {
                    if (due == 0 && tcp.Available == 0) return;
                    size = stream.Read(buffer, to, buffer.Length - to);
                }
                catch (Exception e) when (Broken(e)) { throw Ended(due, "the server is unreachable or silent: " + (e.InnerException ?? e).Message); }
                if (size <= 0 || (gone && left.ElapsedMilliseconds > 500)) throw Ended(due, "the server's stream ended");
                to += size;
            }
        }

        private RlxException Ended(uint due, string why)
        {
            string question = ": is it an RLX server " + (config.Tls ? "with" : "without") + " TLS?";
            return Interrupted(0, due == Welcome ? Where + ": no welcome: " + why + question : why);
        }

        // Process one frame. Returns whether it is the expected answer.
        private bool Look(ArraySegment<byte> payload, uint due)
        {
            try
            {
                var found = new Message(payload).Fields.Where(f => f.Number <= 8 && f.Kind == 2).ToList();
                if (found.Count > 1) throw Mistake(Message.Malformed, "two messages in one frame");
                uint kind = found.Count == 0 ? 0 : (uint)found[0].Number;
                var m = found.Count == 0 ? null : new Message(found[0].Bytes);
                if (kind == Error || kind == Finished || kind == Bye) throw Farewell(kind, m);
                if (gone) return false;
                if (kind == Ping) Send(Pong, new Part().Integer(1, m.Integer(1) & uint.MaxValue));
                if (kind == Ping || kind == Pong) return kind == Pong && due == Pong;
                if (kind == 0 || kind != due) throw Mistake(3, "message " + kind + " is not allowed now");
                if (kind == Welcome) ReadWelcome(m);
                else if (kind == Actions) ReadActions(m);
                else returns = m.Doubles(1, n);
                return true;
            }
            catch (WrongBytes e) { throw Mistake(e.Code, "invalid Protobuf, or a value outside the agreed range"); }
        }

        private void ReadWelcome(Message m)
        {
            var limits = new Message(m.All(5));
            m.Text(2);
            string session = m.Text(3), algorithm = m.Text(4);
            long given = (long)(limits.Integer(1) & uint.MaxValue);
            double idle = limits.Double(2), heartbeat = limits.Double(3);
            long acted = n * action.Sum(leaf => (long)leaf.Size);
            long seen = n * observation.Sum(leaf => (long)leaf.Size) * (config.Autoreset.Contains(Autoreset.SameStep) ? 2 : 1);
            if (m.Integer(1) != 1) throw new WrongBytes(4);
            if (!(idle > 0 && heartbeat > 0) || double.IsInfinity(idle + heartbeat)) throw new WrongBytes(Message.Value);
            if (!Regex.IsMatch(session, @"\A[A-Za-z0-9_-]{0,128}\z")) throw new WrongBytes(Message.Value);
            if ((config.ChosenActions ? seen + acted : Math.Max(seen, acted)) > given) throw new WrongBytes(9);
            var granted = wanted.Select((_, at) => m.Integer(6 + (uint)at) != 0).ToArray();
            var found = m.ParameterNames();
            var values = m.Doubles(10, n * found.Length);
            if (wanted.Zip(granted, (asks, has) => has && !asks).Contains(true) || (found.Length > 0 && !granted[2]))
                throw new WrongBytes(Message.Value);
            int lacking = wanted.Zip(granted, (asks, has) => asks && !has).ToList().IndexOf(true);
            if (lacking >= 0)
            {
                SayBye(Capabilities[lacking] + " are not supported");
                throw new RlxException(Meaning.Failed, UnsupportedSpace, Where + ": the server or its algorithm does not support "
                    + Capabilities[lacking] + ": use another algorithm, or do not set " + Flags[lacking]);
            }
            parameterNames = found;
            parameters = values;
            told = false;
            Session = session;
            Algorithm = algorithm;
            limit = given;
            lock (names)
            {
                nameBytes = limits.Integer(4);
                nameLimit = limits.Integer(5);
                names.Clear();
            }
            most = Math.Min(given, HandshakeBytes + 2 * acted + 16 * n * (1 + found.Length)); // the longest possible answer
            Patience(Math.Max(5, Math.Min(3 * heartbeat, 1e6)));
        }

        // Read actions, and the parameters that they replace.
        private void ReadActions(Message m)
        {
            int size = parameterNames.Length;
            var places = m.Integers(2, n);
            var values = m.Doubles(3, places.Count * size);
            bool increasing = places.Zip(places.Skip(1), (one, next) => one < next).All(right => right);
            if (!increasing || (places.Count > 0 && (places.Last() >= (ulong)n || !config.EnvironmentParameters)))
                throw new WrongBytes(Message.Value);
            actions = m.Actions(action, n);
            for (int k = 0; k < places.Count; k++) Array.Copy(values, k * size, parameters, (int)places[k] * size, size);
        }

        // Process the server's last message: an error, the end of training, or a bye.
        private RlxException Farewell(uint kind, Message m)
        {
            string text = m.Text(kind == Error ? 2u : 1u);
            double after = kind == Error ? m.Double(4) : 0;
            if (!(after >= 0) || double.IsInfinity(after)) throw new WrongBytes(Message.Value);
            HangUp();
            if (kind == Finished)
                return end = new RlxException(Meaning.Finished, 0, "training has finished: " + text, m.Integer(2));
            if (kind == Bye) return Interrupted(0, "the server sent bye: " + text);
            ulong code = m.Integer(1);
            if (text.Length == 0) text = "error " + code;
            if (m.Integer(3) == 0) return new RlxException(Meaning.Failed, code, text);
            return Interrupted(code, text, Math.Min(after, 1e9));
        }

        // Connect to the current address once.
        private void Attempt()
        {
            string where = Where;
            int colon = where.LastIndexOf(':');
            string host = where.Substring(0, colon).Trim('[', ']');
            limit = HandshakeBytes;
            most = HandshakeBytes + (config.EnvironmentParameters ? 2048L * n : 0);
            answered = false;
            var hello = Framed(Hello, HelloOf(true));
            bool welcomed = false;
            try
            {
                tcp = Connected(host, int.Parse(where.Substring(colon + 1)));
                if (cancel.IsCancellationRequested) throw new IOException("the call was cancelled");
                tcp.NoDelay = true;
                Patience(60);
                stream = tcp.GetStream();
                if (config.Tls) Secure(host, where);
                Write(hello);
                Hear(Welcome);
                welcomed = true;
            }
            catch (Exception e) when (Broken(e))
            {
                throw Interrupted(0, "cannot connect to " + where + ": " + (e.InnerException ?? e).Message + ": is an RLX server running there?");
            }
            finally { if (!welcomed) HangUp(); }
        }

        // Connect to the first address of the host that accepts.
        private TcpClient Connected(string host, int port)
        {
            Exception why = null;
            foreach (var one in Dns.GetHostAddresses(host))
            {
                var client = new TcpClient(one.AddressFamily);
                try
                {
                    if (client.ConnectAsync(one, port).Wait(10000, cancel)) return client;
                    why = new IOException("it took too long");
                }
                catch (Exception e) when (Broken(e)) { why = e; }
                catch (OperationCanceledException) { why = new IOException("the call was cancelled"); }
                client.Close();
            }
            throw why ?? new IOException("the address is missing");
        }

        // A retry does not help with an untrusted certificate or a peer without TLS.
        private void Secure(string host, string where)
        {
            var secure = new SslStream(stream, false, config.Trust);
            stream = secure;
            try { secure.AuthenticateAsClient(host, null, SslProtocols.Tls12, false); }
            catch (Exception e) when (!(e is IOException || e.InnerException is IOException || e.InnerException is SocketException))
            {
                throw new RlxException(Meaning.Failed, 0, "no TLS with " + where + ": " + (e.InnerException ?? e).Message);
            }
        }

        // The bounds of observations are left out if the hello would be too long (section 6).
        private Part HelloOf(bool bounds)
        {
            var hello = new Part().Integer(1, 1).Text(2, "relaax-csharp").Text(3, Version).Text(4, config.Token);
            hello.Text(5, config.Environment).Text(6, config.Host).Integer(7, (ulong)config.FrameSkip);
            hello.Space(8, config.Observation, bounds).Space(9, config.Action).Integer(10, (ulong)n);
            hello.Packed(11, config.Autoreset.Select(habit => (long)habit)).Integer(12, (ulong)config.Mode).Text(13, Session);
            hello.Integer(14, config.ReportsEpisodes ? 1u : 0u);
            for (uint at = 0; at < wanted.Length; at++) hello.Integer(15 + at, wanted[at] ? 1u : 0u);
            return bounds && hello.Length > HandshakeBytes - 4 ? HelloOf(false) : hello;
        }

        // Wait before the next attempt, longer after each failure, or give up.
        private void BackOff(RlxException reason)
        {
            double chance = random.NextDouble();
            double wait = Math.Max(Math.Min(30, 0.5 * Math.Pow(2, failures)) * (0.5 + chance / 2), reason.RetryAfter * (1 + chance / 5));
            if (failures == 0) since = Stopwatch.StartNew();
            if (since.Elapsed.TotalSeconds + wait > config.RetrySeconds)
            {
                failures = 0;
                throw new RlxException(Meaning.Failed, reason.Code, reason.Message);
            }
            failures++;
            address++;
            config.OnRetry(reason, wait);
            if (cancel.WaitHandle.WaitOne((int)Math.Ceiling(1000 * wait))) throw Interrupted(0, "the call was cancelled");
        }

        private void Ask(uint kind, Part content, uint due)
        {
            Send(kind, content);
            Hear(due);
            if (due == Pong) return;
            answered = true;
            failures = 0;
            playing = due == Actions;
        }

        // Pack an observation or actions. The values of rows that are hidden are not checked.
        private byte[][] Pack(Array[] leaves, bool[] hidden = null, bool isAction = false)
        {
            var form = isAction ? action : observation;
            if (leaves == null || leaves.Length != form.Length)
                throw new ArgumentException((isAction ? "an action has " : "an observation has ") + form.Length + " leaves");
            return leaves.Select((leaf, i) => form[i].Pack(leaf, n, hidden, isAction)).ToArray();
        }

        // Pack the actions that the client chose, or return null if there are none.
        private byte[][] PackAction(Outcome o) { return hiddenAction.Contains(false) ? Pack(o.Action, hiddenAction, true) : null; }

        private void CheckMarks(string name, bool[] mask, bool allowed, string flag)
        {
            if (mask == null) return;
            if (mask.Length != n) throw new ArgumentException(name + " has " + n + " entries");
            int place = Array.IndexOf(mask, true);
            if (place >= 0 && !allowed) throw new ArgumentException(name + " marks environment " + place + ": set " + flag + " to true");
        }

        // Check an outcome, and record the masks of its message.
        private void Check(Outcome o, bool stepping)
        {
            if (stream == null) throw end ?? lost ?? new RlxException(Meaning.Interrupted, 0, "the connection is lost: call Init to reconnect");
            if (!playing) throw new ArgumentException("no episode is in progress: call Init first");
            if (o.Reward.Length != n || (o.Terminated ?? cut).Length != n || (o.Truncated ?? cut).Length != n)
                throw new ArgumentException("rewards and masks have " + n + " entries");
            if (stepping) CheckMarks("idle", o.Idle, config.OutOfStep, "OutOfStep");
            CheckMarks("chosen", o.Chosen, config.ChosenActions, "ChosenActions");
            bool needed = false, allowed = !stepping;
            for (int i = 0; i < n; i++)
            {
                bool over = stepping && o.Terminated != null && o.Terminated[i];
                bool idle = stepping && o.Idle != null && o.Idle[i];
                cut[i] = o.Truncated != null && o.Truncated[i] && !over && (stepping || !away[i]);
                bool ended = over || cut[i];
                first[i] = away[i] && !idle;
                hidden[i] = idle && !(ended && Habit(i) == Autoreset.NextStep);
                hiddenFinal[i] = !(ended && Habit(i) == Autoreset.SameStep);
                hiddenAction[i] = o.Chosen == null || !o.Chosen[i];
                awayNext[i] = ended ? idle || Habit(i) == Autoreset.NextStep : idle && away[i];
                if (!(Math.Abs(o.Reward[i]) <= 1e15))
                    throw new ArgumentException("the reward of environment " + i + " is " + o.Reward[i] + "; it must be from -1e15 to 1e15");
                if (stepping && ended && (Habit(i) == Autoreset.Disabled || away[i]))
                    throw new ArgumentException("the episode of environment " + i + " cannot end in this step");
                if (!hiddenAction[i] && (first[i] || (idle && !ended)))
                    throw new ArgumentException("chosen marks environment " + i + ", which took no action");
                needed |= cut[i] && (!stepping || Habit(i) == Autoreset.SameStep);
                allowed |= !hiddenFinal[i];
            }
            if (needed && o.FinalObservation == null) throw new ArgumentException("a truncated episode needs its final observation");
            if (!allowed && o.FinalObservation != null) throw new ArgumentException("a final observation was given, but no episode ended");
            bool known = o.Episodes.All(e => e.Environment >= 0 && e.Environment < n && e.Length > 0 && Math.Abs(e.Return) <= 1e30);
            known &= o.Episodes.Select(e => e.Environment).Distinct().Count() == o.Episodes.Count;
            if (!known || (!config.ReportsEpisodes && o.Episodes.Count > 0))
                throw new ArgumentException("episodes: at most one for each environment, and only with ReportsEpisodes");
        }
    }
}
