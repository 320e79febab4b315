using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;

namespace Rlx
{
    /// <summary>Element types, as numbered on the wire. A Bool is a byte, 0 or 1; a Float16 is its 16 bits, a ushort.</summary>
    public enum Dtype { Bool = 1, UInt8, UInt16, UInt32, UInt64, Int8, Int16, Int32, Int64, Float16, Float32, Float64 }

    /// <summary>The set of possible observations or actions of one environment.</summary>
    public sealed class Space
    {
        internal int Kind;
        internal Dtype Dtype;
        internal int[] Shape = new int[0];
        internal double[] Low = new double[0], High = new double[0];
        internal long N, Start;
        internal long[] Nvec;
        internal KeyValuePair<string, Space>[] Parts;

        private Space(int kind) { Kind = kind; }

        /// <summary>Arrays of a shape. Bounds: one for all elements, one for each, or null for none.</summary>
        public static Space Box(Dtype dtype, int[] shape, double[] low = null, double[] high = null)
        {
            return new Space(1) { Dtype = dtype, Shape = shape, Low = low ?? new double[0], High = high ?? new double[0] };
        }

        /// <summary>start, ..., start + n - 1; a leaf is a long[].</summary>
        public static Space Discrete(long n, long start = 0) { return new Space(2) { Dtype = Dtype.Int64, N = n, Start = start }; }

        /// <summary>A vector of choices, element i one of 0, ..., nvec[i] - 1; a leaf is a long[].</summary>
        public static Space MultiDiscrete(params long[] nvec)
        {
            return new Space(3) { Dtype = Dtype.Int64, Shape = new[] { nvec.Length }, Nvec = nvec };
        }

        /// <summary>Bits of a shape; a leaf is an sbyte[].</summary>
        public static Space MultiBinary(params int[] shape) { return new Space(4) { Dtype = Dtype.Int8, Shape = shape }; }

        /// <summary>An ordered list of spaces.</summary>
        public static Space Tuple(params Space[] spaces)
        {
            return new Space(5) { Parts = spaces.Select(one => new KeyValuePair<string, Space>("", one)).ToArray() };
        }

        /// <summary>Named spaces. Their leaves are in the order of the keys, by code point.</summary>
        public static Space Dict(IDictionary<string, Space> spaces)
        {
            var parts = spaces.ToArray();
            Array.Sort(parts, (a, b) => Compare(Encoding.UTF8.GetBytes(a.Key), Encoding.UTF8.GetBytes(b.Key)));
            return new Space(6) { Parts = parts };
        }

        // The bytes of UTF-8 are in the order of code points; strings are not.
        private static int Compare(byte[] a, byte[] b)
        {
            for (int i = 0; i < a.Length && i < b.Length; i++)
                if (a[i] != b[i]) return a[i] - b[i];
            return a.Length - b.Length;
        }

        internal Leaf[] Leaves()
        {
            return Parts == null ? new[] { new Leaf(this) } : Parts.SelectMany(part => part.Value.Leaves()).ToArray();
        }
    }

    /// <summary>One array of a value.</summary>
    internal sealed class Leaf
    {
        private static readonly int[] Sizes = { 0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8 };
        private static readonly Type[] Types =
        {
            null, typeof(byte), typeof(byte), typeof(ushort), typeof(uint), typeof(ulong), typeof(sbyte), typeof(short),
            typeof(int), typeof(long), typeof(ushort), typeof(float), typeof(double)
        };

        internal readonly Space Space;
        internal readonly int Elements, Size;
        private readonly int bytes;

        internal Leaf(Space space)
        {
            Space = space;
            if (space.Dtype < Dtype.Bool || space.Dtype > Dtype.Float64) throw new ArgumentException("a box with the unknown dtype " + space.Dtype);
            bytes = Sizes[(int)space.Dtype];
            long count = 1;
            foreach (int axis in space.Shape)
            {
                count *= axis;
                if (axis < 1 || count * bytes > int.MaxValue)
                    throw new ArgumentException("a space has the shape [" + string.Join(", ", space.Shape) + "]: axes must be at least 1");
            }
            if ((space.Low.Length > 1 && space.Low.Length != count) || (space.High.Length > 1 && space.High.Length != count))
                throw new ArgumentException("a box must have one bound, one for each element, or none");
            Elements = (int)count;
            Size = Elements * bytes;
        }

        /// <summary>The bytes of the numbers of n environments: an array of the dtype's type. The values of rows that are hidden are not checked.</summary>
        internal byte[] Pack(Array numbers, int n, bool[] hidden = null, bool isAction = false)
        {
            string what = "a leaf of the " + (isAction ? "action" : "observation");
            if (numbers.GetType().GetElementType() != Types[(int)Space.Dtype] || numbers.Length != n * Elements)
                throw new ArgumentException(what + " is " + numbers.GetType().Name + " of " + numbers.Length + "; "
                    + Types[(int)Space.Dtype].Name + " x " + n * Elements + " is due");
            var data = new byte[n * Size];
            Buffer.BlockCopy(numbers, 0, data, 0, data.Length); // little-endian machines only: Client checks
            if (!Legal(data, n, isAction, hidden))
                throw new ArgumentException(what + " has a value that is NaN, infinite or outside the space");
            return data;
        }

        internal Array Unpack(byte[] data)
        {
            var numbers = Array.CreateInstance(Types[(int)Space.Dtype], data.Length / bytes);
            Buffer.BlockCopy(data, 0, numbers, 0, data.Length);
            return numbers;
        }

        /// <summary>Whether the bytes are n values of the space, except for hidden rows. Bounds of a box apply only to actions.</summary>
        internal bool Legal(byte[] data, int n, bool bounds, bool[] hidden = null)
        {
            bool free = Space.Kind == 1 && !bounds && Space.Dtype > Dtype.Bool && Space.Dtype < Dtype.Float16;
            if (data.Length != n * Size) return false;
            for (int row = 0; !free && row < n; row++)
                for (int i = 0; (hidden == null || !hidden[row]) && i < Elements; i++)
                    if (!InRange(data, (row * Elements + i) * bytes, i, bounds)) return false;
            return true;
        }

        private bool InRange(byte[] data, int at, int i, bool bounds)
        {
            if (Space.Dtype == Dtype.Bool || Space.Kind == 4) return data[at] <= 1;
            if (Space.Kind != 1)
            {
                long chosen = BitConverter.ToInt64(data, at);
                if (Space.Kind == 3) return chosen >= 0 && chosen < Space.Nvec[i];
                return chosen >= Space.Start && unchecked((ulong)(chosen - Space.Start)) <= unchecked((ulong)(Space.N - 1));
            }
            double v = Number(data, at);
            if (double.IsNaN(v) || double.IsInfinity(v)) return false;
            // Bounds are rounded to the dtype, by half of its last place.
            double slack = Space.Dtype == Dtype.Float16 ? 1.0 / 2048 : Space.Dtype == Dtype.Float32 ? 1.0 / 16777216 : 0;
            double low = Space.Low.Length == 0 || !bounds ? v : Space.Low[Space.Low.Length == 1 ? 0 : i];
            double high = Space.High.Length == 0 || !bounds ? v : Space.High[Space.High.Length == 1 ? 0 : i];
            return !(v < low - slack * Math.Abs(low)) && !(v > high + slack * Math.Abs(high)); // NaN: no bound
        }

        private double Number(byte[] data, int at)
        {
            switch (Space.Dtype)
            {
                case Dtype.UInt8: return data[at];
                case Dtype.UInt16: return BitConverter.ToUInt16(data, at);
                case Dtype.UInt32: return BitConverter.ToUInt32(data, at);
                case Dtype.UInt64: return BitConverter.ToUInt64(data, at);
                case Dtype.Int8: return unchecked((sbyte)data[at]);
                case Dtype.Int16: return BitConverter.ToInt16(data, at);
                case Dtype.Int32: return BitConverter.ToInt32(data, at);
                case Dtype.Int64: return BitConverter.ToInt64(data, at);
                case Dtype.Float32: return BitConverter.ToSingle(data, at);
                case Dtype.Float64: return BitConverter.ToDouble(data, at);
            }
            int bits = BitConverter.ToUInt16(data, at), exponent = bits >> 10 & 31, fraction = bits & 1023;
            double size = exponent == 31 ? double.NaN
                : exponent == 0 ? fraction * Math.Pow(2, -24) : (1024 + fraction) * Math.Pow(2, exponent - 25);
            return bits >> 15 == 1 ? -size : size;
        }
    }
}
