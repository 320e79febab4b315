using System;
using System.Threading;
using System.Threading.Tasks;

namespace Rlx
{
    // Calls that do not wait for the server. They check and copy their arguments at once, so that the caller may reuse its
    // arrays. A thread of the client sends them and waits. One call may be in progress; another one is refused.
    public sealed partial class Client
    {
        private readonly SemaphoreSlim wake = new SemaphoreSlim(0);
        private Thread thread;
        private Action job;
        private Task pending;
        private CancellationToken cancel; // of the call in progress
        private CancellationTokenSource abort = new CancellationTokenSource();

        /// <summary>
        /// Connect, as Connect does. A cancelled task ends as soon as the thread is out of the system's call. The connection
        /// is then lost, so the next InitAsync begins new episodes.
        /// </summary>
        public Task ConnectAsync(CancellationToken cancellation = default(CancellationToken))
        {
            CheckFree();
            return Start(() =>
            {
                Open();
                return true;
            }, cancellation);
        }

        /// <summary>Init as a task: see there for the arguments, and ConnectAsync for cancellation.</summary>
        public Task<Array[]> InitAsync(Array[] observation, bool[] partial = null, bool[] idle = null,
            CancellationToken cancellation = default(CancellationToken))
        {
            return Start(InitCall(observation, partial, idle), cancellation);
        }

        /// <summary>Step as a task: see ConnectAsync for cancellation.</summary>
        public Task<Array[]> StepAsync(Outcome o, CancellationToken cancellation = default(CancellationToken))
        {
            return Start(StepCall(o), cancellation);
        }

        /// <summary>Reset as a task: see ConnectAsync for cancellation.</summary>
        public Task<double[]> ResetAsync(Outcome o, CancellationToken cancellation = default(CancellationToken))
        {
            return Start(ResetCall(o), cancellation);
        }

        /// <summary>Begin to connect. Ask IsCompleted in each frame, then call EndConnect.</summary>
        public void BeginConnect() { ConnectAsync(); }

        /// <summary>Begin an Init. Ask IsCompleted in each frame, then call EndInit.</summary>
        public void BeginInit(Array[] observation, bool[] partial = null, bool[] idle = null) { InitAsync(observation, partial, idle); }

        /// <summary>Begin a Step. Ask IsCompleted in each frame, then call EndStep.</summary>
        public void BeginStep(Outcome o) { StepAsync(o); }

        /// <summary>Begin a Reset. Ask IsCompleted in each frame, then call EndReset.</summary>
        public void BeginReset(Outcome o) { ResetAsync(o); }

        /// <summary>Whether no call is in progress: the End method of the last one returns at once.</summary>
        public bool IsCompleted { get { return pending == null || pending.IsCompleted; } }

        /// <summary>Return when the connection exists, or throw the error of BeginConnect. Waits if it is in progress.</summary>
        public void EndConnect() { End<bool>("Connect"); }

        /// <summary>Return the first actions, or throw the error of BeginInit. Waits if it is in progress.</summary>
        public Array[] EndInit() { return End<Array[]>("Init"); }

        /// <summary>Return the next actions, or throw the error of BeginStep. Waits if it is in progress.</summary>
        public Array[] EndStep() { return End<Array[]>("Step"); }

        /// <summary>Return the returns, or throw the error of BeginReset. Waits if it is in progress.</summary>
        public double[] EndReset() { return End<double[]>("Reset"); }

        private T End<T>(string name)
        {
            var task = pending as Task<T>;
            if (task == null) throw new ArgumentException("there is no call to end: call Begin" + name + " first");
            return task.GetAwaiter().GetResult();
        }

        private void CheckFree()
        {
            if (!IsCompleted) throw new ArgumentException("a call is in progress: wait for its task, or until IsCompleted is true");
        }

        // Hand a call to the thread. Continuations run elsewhere, so that they may begin the next call.
        private Task<T> Start<T>(Func<T> call, CancellationToken cancellation)
        {
            var result = new TaskCompletionSource<T>(TaskCreationOptions.RunContinuationsAsynchronously);
            pending = result.Task;
            if (cancellation.IsCancellationRequested)
            {
                result.SetCanceled();
                return result.Task;
            }
            var stop = CancellationTokenSource.CreateLinkedTokenSource(cancellation, abort.Token);
            job = () =>
            {
                T value = default(T);
                Exception error = null;
                cancel = stop.Token;
                try
                {
                    using (cancel.Register(CloseSocket)) value = call();
                }
                catch (Exception e) { error = e; }
                bool cancelled = error != null && stop.IsCancellationRequested;
                if (cancelled)
                {
                    HangUp();
                    lost = null; // the next call connects without a wait
                    failures = 0;
                }
                cancel = default(CancellationToken);
                stop.Dispose();
                if (cancelled) result.SetCanceled(); // last: the caller may then use the client
                else if (error != null) result.SetException(error);
                else result.SetResult(value);
            };
            if (thread == null)
            {
                thread = new Thread(Work) { IsBackground = true, Name = "RLX" };
                thread.Start();
            }
            wake.Release();
            return result.Task;
        }

        private void CloseSocket()
        {
            var open = tcp;
            if (open != null && open.Client != null) open.Client.Close(); // not the TcpClient, whose properties would then throw
        }

        private void Work()
        {
            while (true)
            {
                wake.Wait();
                var next = job;
                job = null;
                if (next == null) return;
                next();
            }
        }

        private void EndThread()
        {
            if (thread == null) return;
            try { if (!pending.Wait(1000)) abort.Cancel(); }
            catch (AggregateException) { } // its caller has the error
            wake.Release(); // without a job: the thread ends
            thread.Join();
            thread = null;
            abort = new CancellationTokenSource();
        }
    }
}
