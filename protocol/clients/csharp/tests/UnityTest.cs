using System;
using System.Globalization;
using System.Linq;
using System.Threading;
using Rlx.Unity;
using UnityEngine;

/// <summary>
/// An agent whose observation is the number of its episode, the number of its actions in it, and its parameter `gravity`. The
/// first choice 1 is not valid after an odd number of actions. Each action is worth 1.
/// </summary>
public sealed class Counter : Agent
{
    public int Last = int.MaxValue; // the number of actions after which the episode ends
    public string Fault = ""; // of the third action: "reward" or "observation" is NaN, or "exception" is thrown once
    private int episode, acted;

    public override void OnEpisodeBegin()
    {
        episode++;
        acted = 0;
    }

    public override void CollectObservations(VectorSensor sensor)
    {
        if (acted > 2 && Fault == "exception")
        {
            Fault = "";
            throw new InvalidOperationException("there is no sensor");
        }
        sensor.AddObservation(episode);
        sensor.AddObservation(acted > 2 && Fault == "observation" ? float.NaN : acted);
        sensor.AddObservation(GetParameter("gravity", -1));
    }

    public override void WriteDiscreteActionMask(IDiscreteActionMask actionMask) { actionMask.SetActionEnabled(0, 1, acted % 2 == 0); }

    public override void OnActionReceived(ActionBuffers actions)
    {
        acted++;
        AddReward(acted > 2 && Fault == "reward" ? float.NaN : 1);
        UnityTest.Acted(name, episode, actions);
        if (acted == Last) EndEpisode();
    }

    public override void Heuristic(in ActionBuffers actionsOut)
    {
        var choices = actionsOut.DiscreteActions;
        choices[0] = 2;
    }
}

/// <summary>
/// Two agents that a test in Python observes: mono unity_test.exe [--rlx-server HOST:PORT] ACTIONS [keep] [plain] [endless]
/// Prints a line for each action, and ends after so many lines. keep: keep the frame rate, 1 ms for each fixed update.
/// plain: without masks and parameters. endless: episodes do not end. reward, observation, exception: the Fault of agent b.
/// </summary>
public static class UnityTest
{
    private static int lines;

    public static void Acted(string agent, int episode, ActionBuffers actions)
    {
        lines++;
        var choices = actions.DiscreteActions;
        Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "{0} {1} {2} {3} {4}", agent, episode, choices[0], choices[1], actions.ContinuousActions[0]));
    }

    public static int Main(string[] words)
    {
        bool connects = words[0] == ConnectionSettings.Option;
        var others = connects ? words.Skip(2).ToArray() : words;
        var root = new GameObject("root");
        var requester = root.AddComponent<DecisionRequester>();
        requester.period = 2;
        requester.keepFrameRate = others.Contains("keep");
        requester.behavior = connects ? BehaviorType.Train : BehaviorType.Heuristic;
        requester.connection.parameters = !others.Contains("plain");
        requester.connection.retrySeconds = 60;
        foreach (string name in new[] { "a", "b" })
        {
            var agent = new GameObject(name, root).AddComponent<Counter>();
            agent.observationSize = 3;
            agent.continuousActions = 1;
            agent.discreteBranches = new[] { 3, 2 };
            agent.masksActions = !others.Contains("plain");
            if (name == "b") agent.Fault = others.Last();
            if (others.Contains("endless")) continue;
            if (name == "a") agent.Last = 3;
            else agent.MaxStep = 5;
        }
        var scene = new Scene(root);
        for (int most = int.Parse(others[0]); lines < most && Application.Code == null;)
        {
            try { scene.FixedUpdate(); }
            catch (InvalidOperationException e) { Debug.LogError(e.Message); } // as Unity does
            Thread.Sleep(1);
        }
        scene.Destroy();
        return Application.Code ?? 0;
    }
}
