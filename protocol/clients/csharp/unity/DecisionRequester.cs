using System;
using System.Collections.Generic;
using System.Linq;
using UnityEngine;

namespace Rlx.Unity
{
    /// <summary>Where the decisions of agents come from.</summary>
    public enum BehaviorType
    {
        /// <summary>From a server, whose agent learns.</summary>
        Train,
        /// <summary>From a server, whose agent acts without learning.</summary>
        Exploit,
        /// <summary>From Agent.Heuristic, without a server.</summary>
        Heuristic
    }

    /// <summary>
    /// Requests decisions for the agents of this object and its children, all in one message on one connection. To train
    /// faster, put more copies of the agent and its surroundings below it.
    /// </summary>
    [DisallowMultipleComponent]
    public sealed class DecisionRequester : MonoBehaviour
    {
        public BehaviorType behavior = BehaviorType.Train;
        public ConnectionSettings connection = new ConnectionSettings();
        [Tooltip("Fixed updates from one decision to the next.")]
        public int period = 5;
        [Tooltip("If set, the game continues with the last actions until the answer has arrived. Else the frame waits for it: "
            + "better for training with a time scale above 1.")]
        public bool keepFrameRate = true;
        [Tooltip("Time.timeScale during training.")]
        public float timeScale = 1;

        private enum Phase { Connecting, Beginning, Stepping, Playing, Over }

        private Agent[] agents;
        private Client client;
        private Phase phase;
        private int updates, waited;
        private Dictionary<string, double[]> parameters = new Dictionary<string, double[]>();

        /// <summary>Called when training has finished or cannot continue.</summary>
        public event Action<RlxException> Ended;

        private void Start()
        {
            agents = GetComponentsInChildren<Agent>();
            if (agents.Length == 0) throw new ArgumentException(name + ": add an Agent to this object or to a child");
            if (period < 1) throw new ArgumentException(name + ": period must be at least 1, not " + period);
            foreach (var agent in agents)
            {
                agent.SetUp(this);
                if (agent.observationSize != agents[0].observationSize || agent.continuousActions != agents[0].continuousActions
                    || !agent.discreteBranches.SequenceEqual(agents[0].discreteBranches) || agent.masksActions != agents[0].masksActions)
                    throw new ArgumentException(agent.name + " has other sizes than " + agents[0].name + ": use another DecisionRequester for it");
            }
            if (behavior == BehaviorType.Heuristic)
            {
                phase = Phase.Playing;
                updates = period;
                foreach (var agent in agents) agent.Begin();
                return;
            }
            var mode = behavior == BehaviorType.Train ? Mode.Train : Mode.Exploit;
            client = new Client(connection.ToConfig(ObservationSpace(), ActionSpace(), agents.Length, mode));
            if (mode == Mode.Train) Time.timeScale = timeScale;
            Connect();
        }

        private void FixedUpdate()
        {
            if (phase < Phase.Playing) Receive(false);
            if (phase == Phase.Playing && updates >= period)
            {
                updates = 0;
                if (client == null) Improvise();
                else Handled(Report);
                if (!keepFrameRate && phase < Phase.Playing) Receive(true);
            }
            foreach (var agent in agents) agent.Act();
            updates++;
        }

        private void OnDestroy()
        {
            if (client != null) client.Dispose();
        }

        /// <summary>Send a number to TensorBoard, as client/NAME.</summary>
        public void Metric(string name, double value)
        {
            if (client != null) client.Metric(name, value);
        }

        internal float Parameter(Agent agent, string name, float defaultValue)
        {
            double[] values;
            return parameters.TryGetValue(name, out values) ? (float)values[Array.IndexOf(agents, agent)] : defaultValue;
        }

        private Space ObservationSpace()
        {
            var numbers = Space.Box(Dtype.Float32, new[] { agents[0].observationSize });
            if (!agents[0].masksActions) return numbers;
            var valid = Space.MultiBinary(agents[0].discreteBranches.Sum());
            return Space.Dict(new Dictionary<string, Space> { { "action_mask", valid }, { "observation", numbers } });
        }

        private Space ActionSpace()
        {
            var branches = agents[0].discreteBranches.Select(one => (long)one).ToArray();
            var discrete = branches.Length == 1 ? Space.Discrete(branches[0]) : Space.MultiDiscrete(branches);
            if (agents[0].continuousActions == 0) return discrete;
            var numbers = Space.Box(Dtype.Float32, new[] { agents[0].continuousActions }, new[] { -1.0 }, new[] { 1.0 });
            return branches.Length == 0 ? numbers : Space.Tuple(discrete, numbers);
        }

        private void Connect()
        {
            phase = Phase.Connecting;
            client.BeginConnect();
        }

        // Process the answer, if it has arrived or if the frame waits for it.
        private void Receive(bool waits)
        {
            if (!client.IsCompleted && !waits)
            {
                waited++;
                return;
            }
            Handled(() =>
            {
                if (phase == Phase.Connecting) BeginEpisodes();
                else Take(phase == Phase.Beginning ? client.EndInit() : client.EndStep());
            });
        }

        private void BeginEpisodes()
        {
            client.EndConnect();
            ReadParameters();
            foreach (var agent in agents) agent.Forget();
            var rows = agents.Select(agent => agent.Observe()).ToArray();
            for (int i = 0; i < rows.Length; i++) agents[i].Check(0, rows[i]);
            foreach (var agent in agents) agent.IsKnown = true;
            client.BeginInit(Leaves(rows, Masks()));
            phase = Phase.Beginning;
            if (!keepFrameRate) Receive(true);
        }

        private void Take(Array[] leaves)
        {
            ReadParameters();
            if (phase == Phase.Beginning) updates = 0;
            else if (keepFrameRate) client.Metric("fixed_updates_waited", waited);
            for (int i = 0; i < agents.Length; i++)
            {
                var agent = agents[i];
                if (agent.Ended != null) continue; // its episode ended while the answer was pending
                var discrete = agent.Buffers.DiscreteActions.Array;
                var continuous = agent.Buffers.ContinuousActions.Array;
                for (int k = 0; k < discrete.Length; k++) discrete[k] = (int)((long[])leaves[0])[i * discrete.Length + k];
                Array.Copy(leaves[leaves.Length - 1], i * continuous.Length, continuous, 0, continuous.Length);
                agent.HasAction = true;
            }
            phase = Phase.Playing;
        }

        // Send the outcome of the last decisions. An ended episode is reported with its last observation and the first of the next.
        private void Report()
        {
            int n = agents.Length;
            var rows = agents.Select(agent => agent.Observe()).ToArray(); // before rewards are taken: it may throw
            var o = new Outcome { Observation = Leaves(rows, Masks()), Reward = new double[n], Terminated = new bool[n], Truncated = new bool[n] };
            var final = new float[n][];
            for (int i = 0; i < n; i++)
            {
                double reward = agents[i].TakeReward();
                var ended = agents[i].Ended;
                agents[i].Ended = null;
                o.Reward[i] = ended == null ? reward : ended.Value.Reward;
                o.Terminated[i] = ended != null && !ended.Value.Truncated;
                o.Truncated[i] = ended != null && ended.Value.Truncated;
                final[i] = ended == null ? new float[agents[i].observationSize] : ended.Value.Observation;
                agents[i].Check(o.Reward[i], rows[i]);
                agents[i].Check(o.Reward[i], final[i]);
            }
            if (o.Terminated.Contains(true) || o.Truncated.Contains(true))
                o.FinalObservation = Leaves(final, Enumerable.Repeat((sbyte)1, n * agents[0].discreteBranches.Sum()).ToArray());
            waited = 0;
            client.BeginStep(o);
            phase = Phase.Stepping;
        }

        // A message that cannot be sent ends the training: without it, its rewards and ends of episodes would be lost.
        private void Handled(Action action)
        {
            try
            {
                action();
            }
            catch (RlxException e)
            {
                HandleEnd(e);
            }
            catch (ArgumentException e)
            {
                HandleEnd(new RlxException(Meaning.Failed, 0, e.Message));
            }
        }

        private void Improvise()
        {
            foreach (var agent in agents)
            {
                agent.Heuristic(agent.Buffers);
                agent.HasAction = true;
            }
        }

        private sbyte[] Masks() { return agents[0].masksActions ? agents.SelectMany(agent => agent.Mask()).ToArray() : null; }

        private Array[] Leaves(float[][] rows, sbyte[] masks)
        {
            var numbers = rows.SelectMany(row => row).ToArray();
            return agents[0].masksActions ? new Array[] { masks, numbers } : new Array[] { numbers };
        }

        private void ReadParameters()
        {
            if (connection.parameters) parameters = client.Parameters();
        }

        private void HandleEnd(RlxException e)
        {
            foreach (var agent in agents) agent.HasAction = false;
            if (e.Meaning == Meaning.Interrupted)
            {
                Debug.LogWarning("RLX: " + e.Message + "; connecting again");
                Connect();
                return;
            }
            phase = Phase.Over;
            client.Dispose();
            if (e.Meaning == Meaning.Finished) Debug.Log(e.Message);
            else Debug.LogError("RLX: " + e.Message);
            if (Ended != null) Ended(e);
            if (ConnectionSettings.FromCommandLine() != null)
                Application.Quit(e.Meaning == Meaning.Finished ? 0 : e.Code >= 4 && e.Code <= 7 ? 2 : 1);
        }
    }
}
