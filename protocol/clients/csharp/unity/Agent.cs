using System;
using System.Collections.Generic;
using UnityEngine;

namespace Rlx.Unity
{
    /// <summary>
    /// An agent in a scene, with the methods of an Agent of ML-Agents. A DecisionRequester on the same object or on a parent
    /// connects it. All agents of a DecisionRequester have the same sizes.
    /// </summary>
    public abstract class Agent : MonoBehaviour
    {
        [Tooltip("Numbers that CollectObservations adds.")]
        public int observationSize = 1;
        [Tooltip("Continuous actions, each from -1 to 1.")]
        public int continuousActions;
        [Tooltip("Discrete actions: the number of choices of each branch.")]
        public int[] discreteBranches = new int[0];
        [Tooltip("Whether WriteDiscreteActionMask marks choices that are not valid.")]
        public bool masksActions;
        [Tooltip("Fixed updates after which an episode is truncated. 0: no limit.")]
        public int MaxStep;

        private DecisionRequester requester;
        private ActionBuffers actions;
        private VectorSensor sensor;
        private DiscreteActionMask mask;
        private double reward;

        /// <summary>Fixed updates of this episode with an action.</summary>
        public int StepCount { get; private set; }

        /// <summary>Episodes that have ended.</summary>
        public int CompletedEpisodes { get; private set; }

        /// <summary>Called once, before the first episode.</summary>
        public virtual void Initialize() { }

        /// <summary>Called when an episode begins: put the agent and its surroundings into a first state.</summary>
        public virtual void OnEpisodeBegin() { }

        /// <summary>Add observationSize numbers. Keep them between about -1 and 1, or set normalize_observations.</summary>
        public virtual void CollectObservations(VectorSensor sensor) { }

        /// <summary>Mark choices that are not valid. Called with each observation if masksActions is set.</summary>
        public virtual void WriteDiscreteActionMask(IDiscreteActionMask actionMask) { }

        /// <summary>Called in each fixed update with the last decision. Not called before the first decision of an episode.</summary>
        public virtual void OnActionReceived(ActionBuffers actions) { }

        /// <summary>Decide without a server: write the actions into the segments.</summary>
        public virtual void Heuristic(in ActionBuffers actionsOut) { }

        /// <summary>Add to the reward since the last decision. A reward before the first decision of an episode is dropped.</summary>
        public void AddReward(float increment) { reward += increment; }

        /// <summary>Replace the reward since the last decision.</summary>
        public void SetReward(float value) { reward = value; }

        /// <summary>End the episode in a terminal state, and begin the next one.</summary>
        public void EndEpisode() { End(false); }

        /// <summary>End the episode for a reason outside of the task, such as a time limit, and begin the next one.</summary>
        public void EpisodeInterrupted() { End(true); }

        /// <summary>Return a number that the server sets for this episode, or the default if the server does not set it.</summary>
        public float GetParameter(string name, float defaultValue)
        {
            return requester == null ? defaultValue : requester.Parameter(this, name, defaultValue);
        }

        // The end of the episode since the last decision, which the next message reports.
        internal struct Ending
        {
            internal bool Truncated;
            internal double Reward;
            internal float[] Observation;
        }

        internal Ending? Ended { get; set; }

        // Whether the server has an observation of this episode.
        internal bool IsKnown { get; set; }

        internal bool HasAction { get; set; }

        internal ActionBuffers Buffers { get { return actions; } }

        internal void SetUp(DecisionRequester owner)
        {
            if (observationSize < 1 || continuousActions < 0 || Array.Exists(discreteBranches, one => one < 1)
                || continuousActions + discreteBranches.Length == 0)
                throw new ArgumentException(name + ": observationSize must be at least 1, and there must be an action");
            requester = owner;
            actions = new ActionBuffers(new float[continuousActions], new int[discreteBranches.Length]);
            sensor = new VectorSensor(observationSize);
            mask = new DiscreteActionMask(discreteBranches);
            Initialize();
        }

        internal void Begin()
        {
            reward = 0;
            StepCount = 0;
            HasAction = false;
            OnEpisodeBegin();
        }

        // Forget the episode, whose connection is lost.
        internal void Forget()
        {
            IsKnown = false;
            Ended = null;
            Begin();
        }

        internal float[] Observe()
        {
            sensor.Clear();
            CollectObservations(sensor);
            return sensor.Observation(name);
        }

        internal sbyte[] Mask()
        {
            mask.Clear();
            WriteDiscreteActionMask(mask);
            return mask.Valid;
        }

        // Refuse numbers that the client refuses, with the name of this agent.
        internal void Check(double reward, float[] observation)
        {
            if (!(Math.Abs(reward) <= 1e15)) throw new ArgumentException(name + ": the reward is " + reward + "; it must be from -1e15 to 1e15");
            int at = Array.FindIndex(observation, number => float.IsNaN(number) || float.IsInfinity(number));
            if (at >= 0) throw new ArgumentException(name + ": number " + at + " of the observation is " + observation[at] + "; it must be finite");
        }

        internal double TakeReward()
        {
            double value = reward;
            reward = 0;
            return value;
        }

        internal void Act()
        {
            if (!HasAction) return;
            OnActionReceived(actions);
            if (!HasAction) return; // it ended the episode
            StepCount++;
            if (MaxStep > 0 && StepCount >= MaxStep) EpisodeInterrupted();
        }

        private void End(bool truncated)
        {
            CompletedEpisodes++;
            if (IsKnown && Ended == null) Ended = new Ending { Truncated = truncated, Reward = reward, Observation = Observe() };
            Begin();
        }
    }

    /// <summary>The numbers of an observation.</summary>
    public sealed class VectorSensor
    {
        private readonly List<float> numbers = new List<float>();
        private readonly int size;

        internal VectorSensor(int size) { this.size = size; }

        public void AddObservation(float observation) { numbers.Add(observation); }

        public void AddObservation(int observation) { numbers.Add(observation); }

        public void AddObservation(bool observation) { numbers.Add(observation ? 1 : 0); }

        public void AddObservation(Vector2 observation) { numbers.AddRange(new[] { observation.x, observation.y }); }

        public void AddObservation(Vector3 observation) { numbers.AddRange(new[] { observation.x, observation.y, observation.z }); }

        public void AddObservation(Quaternion observation)
        {
            numbers.AddRange(new[] { observation.x, observation.y, observation.z, observation.w });
        }

        public void AddObservation(IList<float> observation) { numbers.AddRange(observation); }

        /// <summary>Add `range` numbers: 1 at the index `observation`, else 0.</summary>
        public void AddOneHotObservation(int observation, int range)
        {
            for (int i = 0; i < range; i++) numbers.Add(i == observation ? 1 : 0);
        }

        internal void Clear() { numbers.Clear(); }

        internal float[] Observation(string agent)
        {
            if (numbers.Count != size)
                throw new ArgumentException(agent + ": CollectObservations added " + numbers.Count + " numbers; observationSize is " + size);
            return numbers.ToArray();
        }
    }

    /// <summary>The actions of a decision.</summary>
    public readonly struct ActionBuffers
    {
        /// <summary>Numbers from -1 to 1.</summary>
        public ActionSegment<float> ContinuousActions { get; }
        /// <summary>A choice for each branch, from 0.</summary>
        public ActionSegment<int> DiscreteActions { get; }

        internal ActionBuffers(float[] continuous, int[] discrete)
        {
            ContinuousActions = new ActionSegment<float>(continuous);
            DiscreteActions = new ActionSegment<int>(discrete);
        }
    }

    /// <summary>The actions of one kind.</summary>
    public readonly struct ActionSegment<T>
    {
        internal readonly T[] Array;

        internal ActionSegment(T[] array) { Array = array; }

        public int Length { get { return Array.Length; } }

        public T this[int index]
        {
            get { return Array[index]; }
            set { Array[index] = value; }
        }
    }

    /// <summary>Marks choices that are not valid.</summary>
    public interface IDiscreteActionMask
    {
        /// <summary>Set whether a choice of a branch is valid. At first all are.</summary>
        void SetActionEnabled(int branch, int actionIndex, bool isEnabled);
    }

    internal sealed class DiscreteActionMask : IDiscreteActionMask
    {
        internal readonly sbyte[] Valid;
        private readonly int[] starts, branches;

        internal DiscreteActionMask(int[] branches)
        {
            this.branches = branches;
            starts = new int[branches.Length];
            int size = 0;
            for (int i = 0; i < branches.Length; size += branches[i++]) starts[i] = size;
            Valid = new sbyte[size];
        }

        internal void Clear()
        {
            for (int i = 0; i < Valid.Length; i++) Valid[i] = 1;
        }

        public void SetActionEnabled(int branch, int actionIndex, bool isEnabled)
        {
            if (branch < 0 || branch >= branches.Length || actionIndex < 0 || actionIndex >= branches[branch])
                throw new ArgumentException("there is no action " + actionIndex + " of branch " + branch + ": see discreteBranches");
            Valid[starts[branch] + actionIndex] = (sbyte)(isEnabled ? 1 : 0);
        }
    }
}
