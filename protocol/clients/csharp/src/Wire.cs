using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;

namespace Rlx
{
    /// <summary>Bytes that are not a valid message, with an error code of RLX.md, section 9.</summary>
    internal sealed class WrongBytes : Exception
    {
        internal readonly int Code;

        internal WrongBytes(int code) { Code = code; }
    }

    /// <summary>A message, or a part of one, that is being written in Protobuf.</summary>
    internal sealed class Part
    {
        private byte[] data = new byte[64];

        internal int Length { get; private set; }

        private void Add(byte[] more, int count)
        {
            if (Length + count > data.Length) Array.Resize(ref data, Math.Max(Length + count, 2 * data.Length));
            Buffer.BlockCopy(more, 0, data, Length, count);
            Length += count;
        }

        internal byte[] ToArray()
        {
            var all = new byte[Length];
            Buffer.BlockCopy(data, 0, all, 0, Length);
            return all;
        }

        internal Part Raw(byte[] more)
        {
            Add(more, more.Length);
            return this;
        }

        internal Part Varint(ulong v)
        {
            if (Length + 10 > data.Length) Array.Resize(ref data, 2 * data.Length);
            for (; v > 127; v >>= 7) data[Length++] = (byte)(v & 127 | 128);
            data[Length++] = (byte)v;
            return this;
        }

        internal Part Integer(uint field, ulong v) { return v == 0 ? this : Varint(field << 3).Varint(v); }

        internal Part Bytes(uint field, byte[] content) { return Varint(field << 3 | 2).Varint((ulong)content.Length).Raw(content); }

        internal Part Nested(uint field, Part content)
        {
            Varint(field << 3 | 2).Varint((ulong)content.Length).Add(content.data, content.Length);
            return this;
        }

        internal Part Text(uint field, string text) { return text.Length == 0 ? this : Bytes(field, Encoding.UTF8.GetBytes(text)); }

        internal Part Double(uint field, double v) { return Varint(field << 3 | 1).Raw(BitConverter.GetBytes(v)); }

        internal Part Doubles(uint field, double[] numbers)
        {
            var bytes = new byte[8 * numbers.Length];
            Buffer.BlockCopy(numbers, 0, bytes, 0, bytes.Length);
            return bytes.Length == 0 ? this : Bytes(field, bytes);
        }

        internal Part Packed(uint field, IEnumerable<long> numbers)
        {
            var content = new Part();
            foreach (long v in numbers) content.Varint(unchecked((ulong)v));
            return content.Length == 0 ? this : Nested(field, content);
        }

        internal Part Mask(uint field, bool[] mask)
        {
            return mask == null || !mask.Contains(true) ? this : Bytes(field, mask.Select(one => (byte)(one ? 1 : 0)).ToArray());
        }

        /// <summary>With or without the bounds of boxes.</summary>
        internal Part Space(uint field, Space s, bool bounds = true)
        {
            var content = new Part();
            var shape = s.Shape.Select(axis => (long)axis);
            var none = new double[0];
            if (s.Kind == 1)
                content.Integer(1, (ulong)s.Dtype).Packed(2, shape).Doubles(3, bounds ? s.Low : none).Doubles(4, bounds ? s.High : none);
            else if (s.Kind == 2) content.Integer(1, unchecked((ulong)s.N)).Integer(2, unchecked((ulong)s.Start));
            else if (s.Kind == 3) content.Packed(1, s.Nvec);
            else if (s.Kind == 4) content.Packed(1, shape);
            else
                foreach (var part in s.Parts)
                    if (s.Kind == 5) content.Space(1, part.Value, bounds);
                    else content.Nested(1, new Part().Text(1, part.Key).Space(2, part.Value, bounds));
            return Nested(field, new Part().Nested((uint)s.Kind, content));
        }

        internal Part Leaves(uint field, Leaf[] leaves, byte[][] values, int n)
        {
            for (int i = 0; values != null && i < leaves.Length; i++)
            {
                var shape = new long[] { n }.Concat(leaves[i].Space.Shape.Select(axis => (long)axis));
                Nested(field, new Part().Integer(1, (ulong)leaves[i].Space.Dtype).Packed(2, shape).Bytes(3, values[i]));
            }
            return this;
        }

        internal Part Episodes(uint field, IEnumerable<Episode> episodes)
        {
            foreach (var one in episodes)
                Nested(field, new Part().Integer(1, (ulong)one.Environment).Double(2, one.Return).Integer(3, (ulong)one.Length));
            return this;
        }

        /// <summary>Return this content as a message in a frame.</summary>
        internal byte[] Frame(uint kind)
        {
            var payload = new Part().Nested(kind, this);
            uint size = (uint)payload.Length;
            return new Part().Raw(new[] { (byte)(size >> 24), (byte)(size >> 16), (byte)(size >> 8), (byte)size }).Raw(payload.ToArray()).ToArray();
        }
    }

    /// <summary>A field that was read: an integer, or bytes (also of a fixed number).</summary>
    internal struct Field
    {
        internal ulong Number, Integer;
        internal int Kind;
        internal ArraySegment<byte> Bytes;
    }

    /// <summary>The fields of a message, in their order.</summary>
    internal sealed class Message
    {
        internal const int Malformed = 1, Value = 8;
        private static readonly Encoding Strict = new UTF8Encoding(false, true);
        internal readonly List<Field> Fields = new List<Field>();

        /// <summary>Pieces of a message are merged as Protobuf requires, as if their bytes were joined.</summary>
        internal Message(params ArraySegment<byte>[] pieces)
        {
            foreach (var piece in pieces)
            {
                int at = piece.Offset, end = piece.Offset + piece.Count;
                while (at < end)
                {
                    Fields.Add(Next(piece.Array, ref at, end, 0));
                    if (Fields[Fields.Count - 1].Kind == 4) throw new WrongBytes(Malformed);
                }
            }
        }

        private static ulong Varint(byte[] data, ref int at, int end)
        {
            ulong v = 0;
            for (int shift = 0; shift < 70 && at < end; shift += 7)
            {
                byte one = data[at++];
                if (shift < 64) v |= (ulong)(one & 127) << shift;
                if (one < 128) return v;
            }
            throw new WrongBytes(Malformed);
        }

        // A group is unknown and skipped.
        private static Field Next(byte[] data, ref int at, int end, int depth)
        {
            ulong tag = Varint(data, ref at, end), size = 0;
            var f = new Field { Number = tag >> 3, Kind = (int)(tag & 7) };
            if (f.Number == 0 || tag >> 32 != 0 || depth > 100 || f.Kind > 5) throw new WrongBytes(Malformed);
            if (f.Kind == 0) f.Integer = Varint(data, ref at, end);
            else if (f.Kind == 1 || f.Kind == 5) size = f.Kind == 1 ? 8u : 4u;
            else if (f.Kind == 2) size = Varint(data, ref at, end);
            else if (f.Kind == 3)
            {
                var inner = Next(data, ref at, end, depth + 1);
                while (inner.Kind != 4) inner = Next(data, ref at, end, depth + 1);
                if (inner.Number != f.Number) throw new WrongBytes(Malformed);
            }
            if (size > (ulong)(end - at)) throw new WrongBytes(Malformed);
            f.Bytes = new ArraySegment<byte>(data, at, (int)size);
            at += (int)size;
            return f;
        }

        internal ArraySegment<byte>[] All(uint number)
        {
            return Fields.Where(f => f.Number == number && f.Kind == 2).Select(f => f.Bytes).ToArray();
        }

        private Field Last(uint number, int kind) { return Fields.LastOrDefault(f => f.Number == number && f.Kind == kind); }

        internal ulong Integer(uint number) { return Last(number, 0).Integer; }

        internal double Double(uint number)
        {
            var bytes = Last(number, 1).Bytes;
            return bytes.Array == null ? 0 : BitConverter.ToDouble(bytes.Array, bytes.Offset);
        }

        internal byte[] Data(uint number)
        {
            var bytes = Last(number, 2).Bytes;
            var copy = new byte[bytes.Count];
            if (bytes.Count > 0) Buffer.BlockCopy(bytes.Array, bytes.Offset, copy, 0, bytes.Count);
            return copy;
        }

        private static string Decoded(ArraySegment<byte> bytes)
        {
            try { return bytes.Array == null ? "" : Strict.GetString(bytes.Array, bytes.Offset, bytes.Count); }
            catch (ArgumentException) { throw new WrongBytes(Malformed); }
        }

        internal string Text(uint number) { return Decoded(Last(number, 2).Bytes); }

        /// <summary>The names of the parameters in a welcome.</summary>
        internal string[] ParameterNames()
        {
            var all = All(9);
            if (all.Length > 64 || all.Any(one => one.Count > 256)) throw new WrongBytes(9);
            var names = all.Select(Decoded).ToArray();
            if (names.Distinct().Count() < names.Length || names.Any(name => name.Length == 0 || name.Any(char.IsControl)))
                throw new WrongBytes(Value);
            return names;
        }

        /// <summary>A list of integers, packed or not, with at most one too many.</summary>
        internal List<ulong> Integers(uint number, int most)
        {
            var all = new List<ulong>();
            foreach (var f in Fields.Where(f => f.Number == number))
            {
                if (f.Kind == 0) all.Add(f.Integer);
                int at = f.Bytes.Offset, end = at + f.Bytes.Count;
                while (f.Kind == 2 && at < end && all.Count <= most) all.Add(Varint(f.Bytes.Array, ref at, end));
            }
            return all;
        }

        /// <summary>The leaves of actions.</summary>
        internal Array[] Actions(Leaf[] leaves, int n)
        {
            var arrays = All(1);
            if (arrays.Length != leaves.Length) throw new WrongBytes(Value);
            return leaves.Select((leaf, i) =>
            {
                var array = new Message(arrays[i]);
                var due = new[] { (ulong)n }.Concat(leaf.Space.Shape.Select(axis => (ulong)axis));
                var data = array.Data(3);
                if (!array.Integers(2, leaf.Space.Shape.Length + 1).SequenceEqual(due) || array.Integer(1) != (ulong)leaf.Space.Dtype
                    || !leaf.Legal(data, n, true)) throw new WrongBytes(Value);
                return leaf.Unpack(data);
            }).ToArray();
        }

        /// <summary>A list of this many numbers from -1e30 to 1e30, packed or not.</summary>
        internal double[] Doubles(uint number, int count)
        {
            var all = new List<double>();
            foreach (var f in Fields.Where(f => f.Number == number && (f.Kind == 1 || f.Kind == 2)))
            {
                if (f.Bytes.Count % 8 != 0) throw new WrongBytes(Malformed);
                for (int at = 0; at < f.Bytes.Count && all.Count <= count; at += 8)
                    all.Add(BitConverter.ToDouble(f.Bytes.Array, f.Bytes.Offset + at));
            }
            if (all.Count != count || !all.All(v => Math.Abs(v) <= 1e30)) throw new WrongBytes(Value);
            return all.ToArray();
        }
    }
}
