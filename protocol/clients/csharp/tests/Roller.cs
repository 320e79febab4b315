using System;
using System.Diagnostics;
using System.Threading;
using Rlx.Unity;
using UnityEngine;

/// <summary>
/// A player of the scene of docs/from-ml-agents.md, whose RollerAgent.cs is compiled with it:
///   mono roller.exe --rlx-server HOST:PORT [--areas N] [--updates U] [--frames MS] [--exploit]
/// With --frames the game keeps its frame rate: a fixed update each MS milliseconds. Without it, the frame waits for each
/// decision. Prints how many episodes ended at the target.
/// </summary>
public static class Roller
{
    private static string Option(string name, string otherwise)
    {
        var words = System.Environment.GetCommandLineArgs();
        int at = Array.IndexOf(words, name);
        return at < 0 ? otherwise : words[at + 1];
    }

    public static int Main()
    {
        int areas = int.Parse(Option("--areas", "16")), frames = int.Parse(Option("--frames", "0"));
        long updates = long.Parse(Option("--updates", long.MaxValue.ToString()));
        var root = new GameObject("training");
        var requester = root.AddComponent<DecisionRequester>();
        requester.keepFrameRate = frames > 0;
        requester.timeScale = 20;
        if (Option("--exploit", null) != null) requester.behavior = BehaviorType.Exploit;
        var agents = new RollerAgent[areas];
        for (int i = 0; i < areas; i++)
        {
            var area = new GameObject("area " + i, root);
            var ball = new GameObject("ball " + i, area);
            ball.AddComponent<Rigidbody>();
            agents[i] = ball.AddComponent<RollerAgent>();
            agents[i].target = new GameObject("target " + i, area).transform;
            agents[i].observationSize = 8;
            agents[i].continuousActions = 2;
            agents[i].MaxStep = 500;
        }
        var scene = new Scene(root);
        var clock = Stopwatch.StartNew();
        long update = 0, longest = 0;
        for (; update < updates && Application.Code == null; update++)
        {
            long before = clock.ElapsedTicks;
            scene.FixedUpdate();
            if (update > 100) longest = Math.Max(longest, clock.ElapsedTicks - before);
            long left = frames * (update + 1) - clock.ElapsedMilliseconds;
            if (frames > 0 && left > 0) Thread.Sleep((int)left);
        }
        int episodes = 0;
        foreach (var agent in agents) episodes += agent.CompletedEpisodes;
        Console.WriteLine("{0} updates, {1} episodes, longest update {2} ms", update, episodes, 1000 * longest / Stopwatch.Frequency);
        scene.Destroy();
        return Application.Code ?? 0;
    }
}
