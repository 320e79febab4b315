using System;
using System.IO;
using UnityEngine;

namespace Rlx.Unity
{
    /// <summary>Where a DecisionRequester finds its server.</summary>
    [Serializable]
    public sealed class ConnectionSettings
    {
        /// <summary>The option of a player's command line that replaces `addresses`, and ends the player after the training.</summary>
        public const string Option = "--rlx-server";

        [Tooltip("HOST:PORT of the RLX server, or several, separated by commas. The command line of a player may replace it: " + Option + " HOST:PORT")]
        public string addresses = "localhost:7001";
        [Tooltip("Name of the task, for the server's log.")]
        public string environment = "Unity";
        [Tooltip("File with the token. Empty: the variable RELAAX_TOKEN, if it is set.")]
        public string tokenFile = "";
        [Tooltip("Whether to use TLS. The system checks the certificate.")]
        public bool tls;
        [Tooltip("Whether the server sets numbers for each episode, which GetParameter returns.")]
        public bool parameters;
        [Tooltip("Seconds of retries after which a lost connection is an error.")]
        public float retrySeconds = 300;

        // The addresses of the command line, or null.
        internal static string FromCommandLine()
        {
            var words = Environment.GetCommandLineArgs();
            int at = Array.IndexOf(words, Option);
            return at < 0 || at + 1 == words.Length ? null : words[at + 1];
        }

        internal Config ToConfig(Space observation, Space action, int agents, Mode mode)
        {
            return new Config
            {
                Addresses = (FromCommandLine() ?? addresses).Split(','), Observation = observation, Action = action, Environments = agents,
                Autoreset = new[] { Autoreset.SameStep }, Mode = mode, Environment = environment, Host = Environment.MachineName, Tls = tls,
                Token = tokenFile.Length > 0 ? File.ReadAllText(tokenFile).Trim() : Environment.GetEnvironmentVariable("RELAAX_TOKEN") ?? "",
                EnvironmentParameters = parameters, RetrySeconds = retrySeconds,
                OnRetry = (reason, seconds) => Debug.LogWarning("RLX: " + reason.Message + "; trying again in " + seconds.ToString("F1") + " s")
            };
        }
    }
}
