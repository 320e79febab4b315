using System;
using System.Diagnostics;
using System.Globalization;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Rlx;

/// <summary>
/// Prints the time of a step by Step, StepAsync and BeginStep, each the best of several rounds: speed.exe HOST:PORT
/// ENVIRONMENTS. The environments do no work: four numbers that do not change, and episodes that do not end.
/// </summary>
public static class Speed
{
    private const int Rounds = 40, Steps = 500;

    private static double Seconds(Action play)
    {
        var took = Stopwatch.StartNew();
        play();
        return took.Elapsed.TotalSeconds;
    }

    private static async Task Await(Client client, Outcome o)
    {
        for (int i = 0; i < Steps; i++) await client.StepAsync(o).ConfigureAwait(false);
    }

    private static void Poll(Client client, Outcome o)
    {
        for (int i = 0; i < Steps; i++)
        {
            client.BeginStep(o);
            while (!client.IsCompleted) Thread.Yield();
            client.EndStep();
        }
    }

    public static void Main(string[] words)
    {
        int n = int.Parse(words[1]);
        var config = new Config
        {
            Addresses = new[] { words[0] }, Environments = n, Observation = Space.Box(Dtype.Float32, new[] { 4 }), Action = Space.Discrete(2),
            Autoreset = new[] { Autoreset.SameStep }
        };
        var seen = new Array[] { new float[4 * n] };
        var o = new Outcome { Reward = new double[n], Observation = seen };
        using (var client = new Client(config))
        {
            client.Init(seen);
            var best = Enumerable.Repeat(double.MaxValue, 3).ToArray();
            for (int round = 0; round < Rounds; round++)
            {
                best[0] = Math.Min(best[0], Seconds(() => { for (int i = 0; i < Steps; i++) client.Step(o); }));
                best[1] = Math.Min(best[1], Seconds(() => Await(client, o).Wait()));
                best[2] = Math.Min(best[2], Seconds(() => Poll(client, o)));
            }
            foreach (double seconds in best)
                Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "{0:F1} us, {1:F0} steps/s", 1e6 * seconds / Steps, n * Steps / seconds));
        }
    }
}
