package relaax.rlx;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** The set of possible observations or actions of one environment. */
public sealed interface Space {
    /** Element types, in the order of their numbers. BOOL, UINT8 and INT8 leaves are byte[], UINT16, INT16 and FLOAT16 short[]. */
    enum Dtype {
        BOOL(1), UINT8(1), UINT16(2), UINT32(4), UINT64(8), INT8(1), INT16(2), INT32(4), INT64(8), FLOAT16(2), FLOAT32(4), FLOAT64(8);

        final int size;

        Dtype(int size) {
            this.size = size;
        }

        int number() {
            return ordinal() + 1;
        }
    }

    /** Arrays. {@code low} and {@code high} hold one bound for all elements, one for each, or none. */
    record Box(Dtype dtype, int[] shape, double[] low, double[] high) implements Space {
        /** Without bounds. */
        public Box(Dtype dtype, int... shape) {
            this(dtype, shape, new double[0], new double[0]);
        }
    }

    /** start, ..., start + n - 1; a leaf is a long[]. */
    record Discrete(long n, long start) implements Space {
        /** The numbers 0, ..., n - 1. */
        public Discrete(long n) {
            this(n, 0);
        }
    }

    /** A vector of choices, element i one of 0, ..., nvec[i] - 1; a leaf is a long[]. */
    record MultiDiscrete(long... nvec) implements Space {}

    /** Bits; a leaf is a byte[]. */
    record MultiBinary(int... shape) implements Space {}

    /** An ordered list of spaces. */
    record Tuple(List<Space> spaces) implements Space {}

    /** Named spaces. Their leaves are in the order of the keys, by code point. */
    record Dict(Map<String, Space> spaces) implements Space {
        List<String> keys() { // the bytes of UTF-8 are in the order of code points; Strings are not
            return spaces.keySet().stream().sorted((a, b) -> Arrays.compareUnsigned(
                    a.getBytes(StandardCharsets.UTF_8), b.getBytes(StandardCharsets.UTF_8))).toList();
        }
    }

    /** The arrays of a value. */
    default List<Leaf> leaves() {
        List<Leaf> all = new ArrayList<>();
        if (this instanceof Tuple tuple) tuple.spaces.forEach(part -> all.addAll(part.leaves()));
        else if (this instanceof Dict dict) dict.keys().forEach(key -> all.addAll(dict.spaces.get(key).leaves()));
        else all.add(new Leaf(this));
        return all;
    }

    /** One array of a value. */
    final class Leaf {
        final Space space;
        final Dtype dtype;
        final int[] shape;
        final int elements;
        final int size;

        private Leaf(Space space) {
            this.space = space;
            dtype = space instanceof Box box ? box.dtype : space instanceof MultiBinary ? Dtype.INT8 : Dtype.INT64;
            shape = space instanceof Box box ? box.shape : space instanceof MultiBinary bits ? bits.shape
                    : space instanceof MultiDiscrete choices ? new int[] {choices.nvec.length} : new int[0];
            long count = 1;
            for (int axis : shape) {
                count *= axis;
                if (axis < 1 || count * dtype.size > Integer.MAX_VALUE) {
                    throw new IllegalArgumentException("a space has the shape " + Arrays.toString(shape) + ": axes are at least 1");
                }
            }
            elements = (int) count;
            size = elements * dtype.size;
            if (space instanceof Box box && (box.low.length > 1 && box.low.length != count || box.high.length > 1 && box.high.length != count)) {
                throw new IllegalArgumentException("a box must have one bound, one for each element, or none");
            }
        }

        /**
         * The bytes of the numbers of n environments, from a primitive array of their length. {@code bounds}: it is a leaf of actions.
         * The values of rows that are {@code hidden} are not checked; null: all are.
         */
        byte[] pack(Object numbers, int n, boolean bounds, boolean[] hidden) {
            String what = "a leaf of the " + (bounds ? "action" : "observation");
            ByteBuffer to = ByteBuffer.allocate(size * n).order(ByteOrder.LITTLE_ENDIAN);
            int length = java.lang.reflect.Array.getLength(numbers);
            if (numbers.getClass() != like(0).getClass() || length != elements * n) {
                throw new IllegalArgumentException(what + " is " + numbers.getClass().getSimpleName() + " of " + length
                        + "; " + dtype + " x " + elements * n + " is due");
            }
            if (numbers instanceof byte[] some) to.put(some);
            else if (numbers instanceof short[] some) to.asShortBuffer().put(some);
            else if (numbers instanceof int[] some) to.asIntBuffer().put(some);
            else if (numbers instanceof long[] some) to.asLongBuffer().put(some);
            else if (numbers instanceof float[] some) to.asFloatBuffer().put(some);
            else to.asDoubleBuffer().put((double[]) numbers);
            if (!legal(to, n, bounds, hidden)) {
                throw new IllegalArgumentException(what + " has a value that is NaN, infinite or outside the space");
            }
            return to.array();
        }

        /** The numbers of these bytes. */
        Object unpack(ByteBuffer from) {
            Object numbers = like(from.remaining() / dtype.size);
            ByteBuffer data = from.duplicate().order(ByteOrder.LITTLE_ENDIAN);
            if (numbers instanceof byte[] some) data.get(some);
            else if (numbers instanceof short[] some) data.asShortBuffer().get(some);
            else if (numbers instanceof int[] some) data.asIntBuffer().get(some);
            else if (numbers instanceof long[] some) data.asLongBuffer().get(some);
            else if (numbers instanceof float[] some) data.asFloatBuffer().get(some);
            else data.asDoubleBuffer().get((double[]) numbers);
            return numbers;
        }

        private Object like(int length) {
            return switch (dtype) {
                case FLOAT32 -> new float[length];
                case FLOAT64 -> new double[length];
                case BOOL, UINT8, INT8 -> new byte[length];
                case UINT16, INT16, FLOAT16 -> new short[length];
                case UINT32, INT32 -> new int[length];
                case UINT64, INT64 -> new long[length];
            };
        }

        /**
         * Whether the bytes are n values of the space, except for {@code hidden} rows. {@code bounds}: also check the bounds of a box,
         * as for actions.
         */
        boolean legal(ByteBuffer data, int n, boolean bounds, boolean[] hidden) {
            boolean free = space instanceof Box && !bounds && dtype.compareTo(Dtype.BOOL) > 0 && dtype.compareTo(Dtype.FLOAT16) < 0;
            ByteBuffer b = data.duplicate().order(ByteOrder.LITTLE_ENDIAN).rewind();
            if (b.remaining() != n * size) return false;
            for (int row = 0; !free && row < n; row++) {
                for (int i = 0; (hidden == null || !hidden[row]) && i < elements; i++) {
                    if (!inRange(b, (row * elements + i) * dtype.size, i, bounds)) return false;
                }
            }
            return true;
        }

        private boolean inRange(ByteBuffer b, int at, int i, boolean bounds) {
            if (dtype == Dtype.BOOL || space instanceof MultiBinary) return (b.get(at) & 255) <= 1;
            if (space instanceof Discrete one) return b.getLong(at) >= one.start && b.getLong(at) - one.start <= one.n - 1;
            if (space instanceof MultiDiscrete many) return b.getLong(at) >= 0 && b.getLong(at) < many.nvec[i];
            Box box = (Box) space;
            double v = number(b, at);
            // Bounds are rounded to the dtype, by half of its last place.
            double slack = dtype == Dtype.FLOAT16 ? 1.0 / 2048 : dtype == Dtype.FLOAT32 ? 1.0 / 16777216 : 0;
            if (!Double.isFinite(v)) return false;
            double low = box.low.length == 0 || !bounds ? v : box.low[box.low.length == 1 ? 0 : i];
            double high = box.high.length == 0 || !bounds ? v : box.high[box.high.length == 1 ? 0 : i];
            return !(v < low - slack * Math.abs(low)) && !(v > high + slack * Math.abs(high)); // NaN: no bound
        }

        private double number(ByteBuffer b, int at) {
            return switch (dtype) {
                case FLOAT32 -> b.getFloat(at);
                case FLOAT64 -> b.getDouble(at);
                case BOOL, UINT8 -> b.get(at) & 255;
                case UINT16 -> b.getShort(at) & 65535;
                case UINT32 -> b.getInt(at) & 0xffffffffL;
                case UINT64 -> (b.getLong(at) >>> 1) * 2.0 + (b.getLong(at) & 1);
                case INT8 -> b.get(at);
                case INT16 -> b.getShort(at);
                case INT32 -> b.getInt(at);
                case INT64 -> b.getLong(at);
                case FLOAT16 -> half(b.getShort(at));
            };
        }

        private static double half(int bits) {
            int exponent = bits >> 10 & 31;
            int fraction = bits & 1023;
            double size = exponent == 31 ? Double.NaN : exponent == 0 ? Math.scalb(fraction, -24) : Math.scalb(1024.0 + fraction, exponent - 25);
            return (bits >> 15 & 1) == 1 ? -size : size;
        }
    }
}
