using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Security;
using System.Net.Sockets;
using System.Security.Authentication;
using System.Text.RegularExpressions;
using System.Threading;

namespace Rlx
{
    /// <summary>What an RlxException means to the caller.</summary>
    public enum Meaning
    {
        /// <summary>The connection is lost, and with it the episodes: reset the environments and call Init, which connects again.</summary>
        Interrupted,
        /// <summary>Training is over.</summary>
        Finished,
        /// <summary>There is nothing to try again, or it was tried for long enough.</summary>
        Failed
    }

    /// <summary>
    /// Why a call did not do what it should. What is wrong with arguments is an ArgumentException: nothing was sent then,
    /// and the connection stands.
    /// </summary>
    public sealed class RlxException : Exception
    {
        /// <summary>What it means to the caller.</summary>
        public Meaning Meaning { get; private set; }
        /// <summary>That of section 9 of the page, or 0.</summary>
        public ulong Code { get; private set; }
        /// <summary>With Finished: the steps of training.</summary>
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

    /// <summary>How an environment passes from one episode to the next.</summary>
    public enum Autoreset { Disabled = 1, SameStep, NextStep }

    /// <summary>What is wanted of the agent: to learn from this client, or to act only.</summary>
    public enum Mode { Train = 1, Exploit }

    /// <summary>A whole episode by the client's own account.</summary>
    public struct Episode
    {
        public int Environment;
        public double Return;
        public int Length;
    }

    /// <summary>Who the client is. What is not set is the usual.</summary>
    public sealed class Config
    {
        /// <summary>HOST:PORT, or several: the next one after each failure.</summary>
        public string[] Addresses = new string[0];
        public Space Observation, Action;
        /// <summary>N.</summary>
        public int Environments = 1;
        /// <summary>One for all environments, or N.</summary>
        public Autoreset[] Autoreset = { Rlx.Autoreset.Disabled };
        public Mode Mode = Mode.Train;
        public string Token = "", Environment = "", Host = "", SessionId = "";
        public int FrameSkip = 1;
        public bool ReportsEpisodes;
        /// <summary>How long to go on trying after a failure; below 0: not at all.</summary>
        public double RetrySeconds = 300;
        /// <summary>Called before each wait: the reason, and how many seconds.</summary>
        public Action<RlxException, double> OnRetry = (reason, seconds) => Console.Error.WriteLine(
            string.Format(CultureInfo.InvariantCulture, "RLX: {0}; trying again in {1:F1} s", reason.Message, seconds));
        /// <summary>Whether to use TLS.</summary>
        public bool Tls;
        /// <summary>Who judges the server's certificate; null: the system, and the host's name.</summary>
        public RemoteCertificateValidationCallback Trust;
    }

    /// <summary>What the last actions led to. Masks may be null: all false.</summary>
    public sealed class Outcome
    {
        /// <summary>N numbers.</summary>
        public double[] Reward;
        /// <summary>Not for Reset.</summary>
        public Array[] Observation;
        /// <summary>Not for Reset.</summary>
        public bool[] Terminated;
        public bool[] Truncated;
        /// <summary>Where an episode ended, with SameStep; needed where one was truncated, for Reset too.</summary>
        public Array[] FinalObservation;
        public List<Episode> Episodes = new List<Episode>();
    }

    /// <summary>
    /// A client of RLX, version 1 (protocol/RLX.md): the way of N environments to their agent. For one thread. Protobuf by
    /// hand; nothing but .NET Standard 2.0. Observations and actions are arrays of leaves; a leaf is an array with the
    /// numbers of all environments, the first one's first: float[] for Float32, long[] for a discrete, and so on.
    /// </summary>
    public sealed class Client : IDisposable
    {
        /// <summary>The client's version.</summary>
        public const string Version = "1.0.0";

        private const uint Hello = 1, InitKind = 2, StepKind = 3, ResetKind = 4, Metrics = 5, Ping = 6, Pong = 7, Bye = 8;
        private const uint Welcome = 1, Actions = 2, Returns = 3, Error = 4, Finished = 5;
        private const int HandshakeBytes = 65536, Slice = 65536;
        private const string SpeaksGrpc = "this port speaks gRPC, like the ports of parameter and replay servers: "
            + "connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)";
        // The start of a gRPC server's stream, after 3 bytes. As RLX a payload would begin with a zero byte, which none does.
        private static readonly byte[] Settings = { 4, 0, 0, 0, 0, 0 };

        private readonly Config config;
        private readonly int n;
        private readonly Leaf[] observation, action;
        private readonly HashSet<string> names = new HashSet<string>();
        private readonly Random random = new Random();
        private TcpClient tcp;
        private Stream stream;
        private bool playing, answered, gone;
        private RlxException lost, end;
        private int address, failures, from, to;
        private long limit, most;
        private ulong nameBytes, nameLimit;
        private Stopwatch since, left;
        private byte[] buffer = new byte[HandshakeBytes];
        private Part scalars = new Part();
        private bool[] between, ended, cut;
        private Array[] actions;
        private double[] returns;

        /// <summary>The session id of the latest welcome.</summary>
        public string Session { get; private set; }

        /// <summary>The name of the algorithm that acts.</summary>
        public string Algorithm { get; private set; }

        /// <summary>Make a client; it does not connect yet.</summary>
        public Client(Config config)
        {
            this.config = config;
            n = config.Environments;
            observation = config.Observation.Leaves();
            action = config.Action.Leaves();
            Session = config.SessionId;
            Algorithm = "";
            if (!BitConverter.IsLittleEndian) throw new PlatformNotSupportedException("this client is for little-endian machines");
            if (n < 1 || n > 65536 || (config.Autoreset.Length != 1 && config.Autoreset.Length != n))
                throw new ArgumentException(n + " environments: 1 to 65536, and one autoreset for all or for each");
            if (config.Addresses.Length == 0 || !config.Addresses.All(one => Regex.IsMatch(one, @"\A\S+:[0-9]{1,5}\z")))
                throw new ArgumentException("the addresses '" + string.Join(",", config.Addresses) + "': HOST:PORT is needed, or several");
            between = new bool[n];
            ended = new bool[n];
            cut = new bool[n];
            limit = HandshakeBytes;
            Framed(Hello, HelloOf(true));
        }

        // The address whose turn it is.
        private string Where { get { return config.Addresses[address % config.Addresses.Length]; } }

        private Autoreset Habit(int i) { return config.Autoreset[config.Autoreset.Length == 1 ? 0 : i]; }

        /// <summary>Connect now; without it the first Init does.</summary>
        public void Connect()
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

        /// <summary>Begin an episode in every environment; the first actions. partial: null, or where it was under way already.</summary>
        public Array[] Init(Array[] observation, bool[] partial = null)
        {
            if (playing) throw new ArgumentException("an episode is under way: Reset ends it");
            if (partial != null && partial.Length != n) throw new ArgumentException("partial has " + n + " entries");
            var content = new Part().Leaves(1, this.observation, Pack(observation), n).Mask(2, partial);
            while (true)
            {
                Connect();
                try
                {
                    Hear(0);
                    Ask(InitKind, content, Actions);
                    between = new bool[n];
                    return actions;
                }
                catch (RlxException e)
                {
                    if (e.Meaning != Meaning.Interrupted) throw;
                }
            }
        }

        /// <summary>
        /// Send an outcome; the next actions. What NEXT_STEP says in `first` is filled in by the client: the reward of an
        /// environment whose episode ended with the step before is void.
        /// </summary>
        public Array[] Step(Outcome o)
        {
            Check(o, true);
            var content = new Part().Doubles(1, o.Reward).Leaves(2, observation, Pack(o.Observation), n);
            content.Mask(3, o.Terminated).Mask(4, cut);
            content.Leaves(5, observation, o.FinalObservation == null ? null : Pack(o.FinalObservation), n);
            content.Mask(6, between).Episodes(7, o.Episodes);
            Hear(0);
            Ask(StepKind, content, Actions);
            for (int i = 0; i < n; i++) between[i] = ended[i] && Habit(i) == Autoreset.NextStep;
            return actions;
        }

        /// <summary>End the episode of every environment; their returns.</summary>
        public double[] Reset(Outcome o)
        {
            Check(o, false);
            var content = new Part().Doubles(1, o.Reward).Mask(2, cut);
            content.Leaves(3, observation, o.FinalObservation == null ? null : Pack(o.FinalObservation), n).Episodes(4, o.Episodes);
            Hear(0);
            Ask(ResetKind, content, Returns);
            return returns;
        }

        /// <summary>Gather a scalar, which goes with the next message; its name is brought into form ("a b" is a_b).
        /// False: no connection, or no room in the server's limits.</summary>
        public bool Metric(string name, double value)
        {
            if (name.Length == 0 || !(Math.Abs(value) <= 1e30))
                throw new ArgumentException("metric '" + name + "', " + value + ": a name, and -1e30 to 1e30");
            name = Regex.Replace(name, @"[\uD800-\uDBFF][\uDC00-\uDFFF]|[^A-Za-z0-9_./-]|^/", "_");
            if (stream == null || (ulong)name.Length > nameBytes || scalars.Length > 65536) return false;
            if (!names.Contains(name) && (ulong)names.Count >= nameLimit) return false;
            names.Add(name);
            scalars.Raw(new Part().Nested(1, new Part().Text(1, name).Double(2, value)).Frame(Metrics));
            return true;
        }

        /// <summary>Say that the environments are alive, where they are slower than the server's idle timeout.</summary>
        public void Alive() { Ask(Ping, new Part().Integer(1, 1), Pong); }

        /// <summary>Say goodbye.</summary>
        public void Dispose()
        {
            try
            {
                if (stream == null) return;
                Patience(0.5);
                Send(Bye, new Part());
                tcp.Client.Shutdown(SocketShutdown.Send);
                left = Stopwatch.StartNew();
                while (left.ElapsedMilliseconds < 1000 && stream.Read(buffer, 0, buffer.Length) > 0) { }
            }
            catch (Exception e) when (e is RlxException || Broken(e)) { } // it is over anyway
            finally { HangUp(); }
        }

        private void HangUp()
        {
            try { if (stream != null) stream.Dispose(); }
            catch (Exception e) when (Broken(e)) { } // it is over anyway
            if (tcp != null) tcp.Close();
            stream = null;
            tcp = null;
            playing = gone = false;
            from = to = 0;
            scalars = new Part();
        }

        // Whether it says that the connection is lost. Over TLS Mono wraps it.
        private static bool Broken(Exception e)
        {
            return e is IOException || e is SocketException || e is AggregateException || e is AuthenticationException || e is ObjectDisposedException;
        }

        // How long reads and writes may take.
        private void Patience(double seconds) { tcp.ReceiveTimeout = tcp.SendTimeout = (int)(1000 * seconds); }

        private RlxException Interrupted(ulong code, string sentence, double retryAfter = 0)
        {
            HangUp();
            return lost = new RlxException(Meaning.Interrupted, code, sentence, 0, retryAfter);
        }

        // Leave a server that broke the rules. Another connection is worth it where this one has worked (section 9).
        private RlxException Mistake(int code, string what)
        {
            var farewell = new Part().Text(1, what).Frame(Bye);
            try { stream.Write(farewell, 0, farewell.Length); }
            catch (Exception e) when (Broken(e)) { } // it is left in any case
            if (answered || gone) return Interrupted((ulong)code, "the server's mistake: " + what);
            HangUp();
            return new RlxException(Meaning.Failed, (ulong)code, Where + ": the server's mistake: " + what + ": is it an RLX server?");
        }

        private byte[] Framed(uint kind, Part content)
        {
            var frame = content.Frame(kind);
            if (frame.Length - 4 <= limit) return frame;
            throw new ArgumentException("a message of " + (frame.Length - 4) + " bytes; the server takes " + limit);
        }

        // Write a message in one call, the gathered scalars before it.
        private void Send(uint kind, Part content)
        {
            if (stream == null) throw end ?? lost ?? Interrupted(0, "there is no connection");
            var frame = Framed(kind, content);
            if (scalars.Length > 0) frame = scalars.Raw(frame).ToArray();
            scalars = new Part();
            Write(frame);
        }

        private void Write(byte[] data)
        {
            var slow = tcp;
            try
            {
                // 16 KiB are taken by the system at once, since the server has answered what was before. For more there is
                // a timer: over TLS Mono keeps to no SendTimeout.
                for (int at = 0; at < data.Length; at += Slice)
                    using (data.Length > 16384 ? new Timer(_ => slow.Close(), null, slow.SendTimeout, Timeout.Infinite) : null)
                        stream.Write(data, at, Math.Min(Slice, data.Length - at));
            }
            catch (Exception e) when (Broken(e)) // the server may have said why
            {
                gone = true;
                left = Stopwatch.StartNew();
                try
                {
                    Patience(0.5);
                    Hear(Finished);
                }
                catch (ObjectDisposedException) { throw Interrupted(0, "the server takes nothing"); }
            }
        }

        // The next frame; Array is null where it is not there yet. Its length is judged before its body is waited for.
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
                int room = (int)Math.Min(4 + size, 2L * (to - from)); // grows with what has come, not with what was announced
                if (buffer.Length < room) Array.Resize(ref buffer, room);
                return default(ArraySegment<byte>);
            }
            var frame = new ArraySegment<byte>(buffer, from + 4, (int)size);
            from += 4 + (int)size;
            return frame;
        }

        // Look at the frames that are there, and read on until what is due has come. 0: read what is there, without waiting.
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
                catch (Exception e) when (Broken(e)) { throw Ended(due, "the server is gone or silent: " + (e.InnerException ?? e).Message); }
                if (size <= 0 || (gone && left.ElapsedMilliseconds > 500)) throw Ended(due, "the server's stream ended");
                to += size;
            }
        }

        private RlxException Ended(uint due, string why)
        {
            string question = ": is it an RLX server " + (config.Tls ? "with" : "without") + " TLS?";
            return Interrupted(0, due == Welcome ? Where + ": no welcome: " + why + question : why);
        }

        // Take one frame; whether it was the one that is due.
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
                if (kind == 0 || kind != due) throw Mistake(3, "message " + kind + " may not be said now");
                if (kind == Welcome) ReadWelcome(m);
                else if (kind == Actions) actions = m.Actions(action, n);
                else returns = m.Returns(n);
                return true;
            }
            catch (WrongBytes e) { throw Mistake(e.Code, "what is no Protobuf, or outside of what was agreed on"); }
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
            if (Math.Max(seen, acted) > given) throw new WrongBytes(9);
            Session = session;
            Algorithm = algorithm;
            limit = given;
            most = Math.Min(given, HandshakeBytes + 2 * acted + 16 * n); // no more than answers can need
            nameBytes = limits.Integer(4);
            nameLimit = limits.Integer(5);
            names.Clear();
            Patience(Math.Max(5, Math.Min(3 * heartbeat, 1e6)));
        }

        // What the server says last.
        private RlxException Farewell(uint kind, Message m)
        {
            string text = m.Text(kind == Error ? 2u : 1u);
            double after = kind == Error ? m.Double(4) : 0;
            if (!(after >= 0) || double.IsInfinity(after)) throw new WrongBytes(Message.Value);
            HangUp();
            if (kind == Finished)
                return end = new RlxException(Meaning.Finished, 0, "training has finished: " + text, m.Integer(2));
            if (kind == Bye) return Interrupted(0, "the server left: " + text);
            ulong code = m.Integer(1);
            if (text.Length == 0) text = "error " + code;
            if (m.Integer(3) == 0) return new RlxException(Meaning.Failed, code, text);
            return Interrupted(code, text, Math.Min(after, 1e9));
        }

        // One connection, to the address whose turn it is.
        private void Attempt()
        {
            string where = Where;
            int colon = where.LastIndexOf(':');
            string host = where.Substring(0, colon).Trim('[', ']');
            limit = most = HandshakeBytes;
            answered = false;
            var hello = Framed(Hello, HelloOf(true));
            bool welcomed = false;
            try
            {
                tcp = Connected(host, int.Parse(where.Substring(colon + 1)));
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

        // The first of the host's addresses that takes a connection.
        private static TcpClient Connected(string host, int port)
        {
            Exception why = null;
            foreach (var one in Dns.GetHostAddresses(host))
            {
                var client = new TcpClient(one.AddressFamily);
                try
                {
                    if (client.ConnectAsync(one, port).Wait(10000)) return client;
                    why = new IOException("it took too long");
                }
                catch (Exception e) when (Broken(e)) { why = e; }
                client.Close();
            }
            throw why ?? new IOException("it has no address");
        }

        // A certificate that is not to be trusted, or a peer without TLS, will be there the next time too.
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

        // The bounds of observations are left out where there is no room for them (section 6).
        private Part HelloOf(bool bounds)
        {
            var hello = new Part().Integer(1, 1).Text(2, "relaax-csharp").Text(3, Version).Text(4, config.Token);
            hello.Text(5, config.Environment).Text(6, config.Host).Integer(7, (ulong)config.FrameSkip);
            hello.Space(8, config.Observation, bounds).Space(9, config.Action).Integer(10, (ulong)n);
            hello.Packed(11, config.Autoreset.Select(habit => (long)habit)).Integer(12, (ulong)config.Mode).Text(13, Session);
            hello.Integer(14, config.ReportsEpisodes ? 1u : 0u);
            return bounds && hello.Length > HandshakeBytes - 4 ? HelloOf(false) : hello;
        }

        // Wait before the next try, longer after each failure; or give up.
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
            Thread.Sleep((int)Math.Ceiling(1000 * wait));
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

        private byte[][] Pack(Array[] leaves)
        {
            if (leaves == null || leaves.Length != observation.Length)
                throw new ArgumentException("an observation has " + observation.Length + " leaves");
            return leaves.Select((leaf, i) => observation[i].Pack(leaf, n)).ToArray();
        }

        // Look at an outcome, and note which episodes it ends and which of them are cut off.
        private void Check(Outcome o, bool stepping)
        {
            if (stream == null) throw end ?? lost ?? Interrupted(0, "the connection is lost: Init connects again");
            if (!playing) throw new ArgumentException("no episode is under way: Init begins one");
            if (o.Reward.Length != n || (o.Terminated ?? cut).Length != n || (o.Truncated ?? cut).Length != n)
                throw new ArgumentException("rewards and masks have " + n + " entries");
            bool needed = false, allowed = !stepping;
            for (int i = 0; i < n; i++)
            {
                bool over = stepping && o.Terminated != null && o.Terminated[i];
                cut[i] = o.Truncated != null && o.Truncated[i] && !over && (stepping || !between[i]);
                ended[i] = over || cut[i];
                if (!(Math.Abs(o.Reward[i]) <= 1e15))
                    throw new ArgumentException("the reward of environment " + i + " is " + o.Reward[i] + "; -1e15 to 1e15 is allowed");
                if (stepping && ended[i] && (Habit(i) == Autoreset.Disabled || between[i]))
                    throw new ArgumentException("the episode of environment " + i + " cannot end here");
                needed |= cut[i] && (!stepping || Habit(i) == Autoreset.SameStep);
                allowed |= ended[i] && Habit(i) == Autoreset.SameStep;
            }
            if (needed && o.FinalObservation == null) throw new ArgumentException("a truncated episode needs its final observation");
            if (!allowed && o.FinalObservation != null) throw new ArgumentException("a final observation, but no episode ended");
            bool known = o.Episodes.All(e => e.Environment >= 0 && e.Environment < n && e.Length > 0 && Math.Abs(e.Return) <= 1e30);
            known &= o.Episodes.Select(e => e.Environment).Distinct().Count() == o.Episodes.Count;
            if (!known || (!config.ReportsEpisodes && o.Episodes.Count > 0))
                throw new ArgumentException("episodes: at most one for each environment, if ReportsEpisodes was said");
        }
    }
}
