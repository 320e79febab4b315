using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;

/// <summary>
/// Stand-ins for the parts of Unity that the components of `unity` and the programs of the pages use, so that they run in a
/// console program. They are for these tests only. Their physics has no collisions: a body falls at the edge of its floor.
/// </summary>
namespace UnityEngine
{
    [AttributeUsage(AttributeTargets.Field)]
    public sealed class TooltipAttribute : Attribute
    {
        public TooltipAttribute(string text) { }
    }

    [AttributeUsage(AttributeTargets.Class)]
    public sealed class DisallowMultipleComponent : Attribute { }

    public struct Vector2
    {
        public float x, y;
    }

    public struct Quaternion
    {
        public float x, y, z, w;
    }

    public struct Vector3
    {
        public float x, y, z;

        public Vector3(float x, float y, float z)
        {
            this.x = x;
            this.y = y;
            this.z = z;
        }

        public static Vector3 zero { get { return new Vector3(); } }

        public static Vector3 operator +(Vector3 a, Vector3 b) { return new Vector3(a.x + b.x, a.y + b.y, a.z + b.z); }

        public static Vector3 operator *(Vector3 a, float k) { return new Vector3(k * a.x, k * a.y, k * a.z); }

        public static float Distance(Vector3 a, Vector3 b)
        {
            return (float)Math.Sqrt((a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y) + (a.z - b.z) * (a.z - b.z));
        }
    }

    public class Object
    {
        public string name = "object";
    }

    public sealed class GameObject : Object
    {
        public readonly Transform transform;
        internal readonly List<Component> Components = new List<Component>();
        internal readonly List<GameObject> Children = new List<GameObject>();

        public GameObject(string name, GameObject parent = null)
        {
            this.name = name;
            transform = AddComponent<Transform>();
            if (parent != null) parent.Children.Add(this);
        }

        public T AddComponent<T>() where T : Component, new()
        {
            var component = new T { name = name, gameObject = this };
            Components.Add(component);
            return component;
        }

        internal IEnumerable<Component> All() { return Components.Concat(Children.SelectMany(child => child.All())); }
    }

    public class Component : Object
    {
        public GameObject gameObject { get; internal set; }

        public Transform transform { get { return gameObject.transform; } }

        public T GetComponent<T>() { return gameObject.Components.OfType<T>().FirstOrDefault(); }

        public T[] GetComponentsInChildren<T>() { return gameObject.All().OfType<T>().ToArray(); }
    }

    public class MonoBehaviour : Component { }

    public sealed class Transform : Component
    {
        public Vector3 localPosition;
    }

    public sealed class Rigidbody : Component
    {
        public const float HalfFloor = 5;
        public Vector3 linearVelocity, angularVelocity;
        private Vector3 force;

        public void AddForce(Vector3 more) { force += more; }

        internal void Simulate(float seconds)
        {
            var at = transform.localPosition;
            bool falls = at.y < 0.5f || Math.Abs(at.x) > HalfFloor || Math.Abs(at.z) > HalfFloor;
            if (falls) force = new Vector3(0, -9.81f, 0);
            linearVelocity += force * seconds;
            transform.localPosition += linearVelocity * seconds;
            force = Vector3.zero;
        }
    }

    public static class Random
    {
        private static readonly System.Random Source = new System.Random(1);

        public static float value { get { return (float)Source.NextDouble(); } }
    }

    public static class Input
    {
        public static Func<string, float> Axis = name => 0;

        public static float GetAxis(string name) { return Axis(name); }
    }

    public static class Time
    {
        public static float timeScale = 1;
    }

    public static class Debug
    {
        public static readonly List<string> Lines = new List<string>();

        public static void Log(object message) { Write("log: " + message); }

        public static void LogWarning(object message) { Write("warning: " + message); }

        public static void LogError(object message) { Write("error: " + message); }

        private static void Write(string line)
        {
            lock (Lines) Lines.Add(line);
            Console.Error.WriteLine(line);
        }
    }

    public static class Application
    {
        public static int? Code { get; private set; }

        public static void Quit(int code) { Code = code; }
    }

    /// <summary>A scene, and its loop of fixed updates.</summary>
    public sealed class Scene
    {
        private readonly GameObject root;

        public Scene(GameObject root)
        {
            this.root = root;
            Call("Start");
        }

        public void FixedUpdate()
        {
            Call("FixedUpdate");
            foreach (var body in root.All().OfType<Rigidbody>()) body.Simulate(0.02f);
        }

        public void Destroy() { Call("OnDestroy"); }

        // Parents first. Unity also finds messages that are private, and those of base classes.
        private void Call(string message)
        {
            foreach (var one in root.All().OfType<MonoBehaviour>().ToArray())
            {
                var method = one.GetType().GetMethod(message, BindingFlags.Instance | BindingFlags.NonPublic | BindingFlags.Public);
                if (method == null) continue;
                try { method.Invoke(one, null); }
                catch (TargetInvocationException e) { throw e.InnerException; }
            }
        }
    }
}
