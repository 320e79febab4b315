package relaax.rlx;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** The part of Protobuf that RLX needs. */
final class Wire {
    static final int MALFORMED = 1;
    static final int VALUE = 8;
    static final int LIMIT = 9;

    private Wire() {}

    /** Bytes that are not a valid message, with an error code of RLX.md, section 9. */
    static final class Wrong extends Exception {
        private static final long serialVersionUID = 1;
        final int code;

        Wrong(int code) {
            super("code " + code, null, false, false);
            this.code = code;
        }
    }

    /** A message, or a part of one, that is being written. */
    static final class Part extends ByteArrayOutputStream {
        Part varint(long v) {
            for (; (v & ~127L) != 0; v >>>= 7) write((int) (v & 127 | 128));
            write((int) v);
            return this;
        }

        Part integer(int field, long v) {
            return v == 0 ? this : varint(field << 3).varint(v);
        }

        Part bytes(int field, byte[] data) {
            varint(field << 3 | 2).varint(data.length).writeBytes(data);
            return this;
        }

        Part part(int field, Part content) {
            return bytes(field, content.toByteArray());
        }

        Part text(int field, String text) {
            return text.isEmpty() ? this : bytes(field, text.getBytes(StandardCharsets.UTF_8));
        }

        Part fixed(double v) {
            writeBytes(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putDouble(v).array());
            return this;
        }

        Part doubles(int field, double[] numbers) {
            if (numbers.length > 0) varint(field << 3 | 2).varint(8L * numbers.length);
            for (double v : numbers) fixed(v);
            return this;
        }

        Part packed(int field, long... numbers) {
            Part content = new Part();
            for (long v : numbers) content.varint(v);
            return numbers.length == 0 ? this : part(field, content);
        }

        Part shape(int field, int[] shape) {
            return packed(field, java.util.Arrays.stream(shape).asLongStream().toArray());
        }

        Part mask(int field, boolean[] mask) {
            byte[] data = new byte[mask == null ? 0 : mask.length];
            boolean any = false;
            for (int i = 0; i < data.length; i++) {
                data[i] = (byte) (mask[i] ? 1 : 0);
                any |= mask[i];
            }
            return any ? bytes(field, data) : this;
        }

        /** With or without the bounds of boxes. */
        Part space(int field, Space space, boolean bounds) {
            Part content = new Part();
            int kind;
            if (space instanceof Space.Box box) {
                kind = 1;
                content.integer(1, box.dtype().number()).shape(2, box.shape());
                if (bounds) content.doubles(3, box.low()).doubles(4, box.high());
            } else if (space instanceof Space.Discrete one) {
                kind = 2;
                content.integer(1, one.n()).integer(2, one.start());
            } else if (space instanceof Space.MultiDiscrete many) {
                kind = 3;
                content.packed(1, many.nvec());
            } else if (space instanceof Space.MultiBinary bits) {
                kind = 4;
                content.shape(1, bits.shape());
            } else if (space instanceof Space.Tuple tuple) {
                kind = 5;
                tuple.spaces().forEach(one -> content.space(1, one, bounds));
            } else {
                kind = 6;
                ((Space.Dict) space).spaces().forEach((key, one) -> content.part(1, new Part().text(1, key).space(2, one, bounds)));
            }
            return part(field, new Part().part(kind, content));
        }

        Part leaves(int field, List<Space.Leaf> leaves, List<byte[]> data, int n) {
            for (int i = 0; i < data.size(); i++) {
                Space.Leaf leaf = leaves.get(i);
                int[] shape = new int[leaf.shape.length + 1];
                shape[0] = n;
                System.arraycopy(leaf.shape, 0, shape, 1, leaf.shape.length);
                part(field, new Part().integer(1, leaf.dtype.number()).shape(2, shape).bytes(3, data.get(i)));
            }
            return this;
        }

        Part episodes(int field, List<Client.Episode> episodes) {
            for (Client.Episode one : episodes) {
                part(field, new Part().integer(1, one.environment()).varint(2 << 3 | 1).fixed(one.episodeReturn()).integer(3, one.length()));
            }
            return this;
        }

        /** Return this content as a message in a frame. */
        byte[] frame(int kind) {
            byte[] payload = new Part().part(kind, this).toByteArray();
            return ByteBuffer.allocate(4 + payload.length).putInt(payload.length).put(payload).array();
        }
    }

    /** A field that was read: an integer, or bytes (also of a fixed number). */
    record Field(long number, int kind, long integer, ByteBuffer bytes) {}

    /** The fields of a message, in their order. */
    record Message(List<Field> fields) {
        /** Pieces of a message are merged as Protobuf requires, as if their bytes were joined. */
        static Message parse(List<ByteBuffer> pieces) throws Wrong {
            List<Field> fields = new ArrayList<>();
            for (ByteBuffer piece : pieces) {
                ByteBuffer in = piece.duplicate().order(ByteOrder.LITTLE_ENDIAN);
                while (in.hasRemaining()) {
                    fields.add(field(in, 0));
                    if (fields.get(fields.size() - 1).kind == 4) throw new Wrong(MALFORMED);
                }
            }
            return new Message(fields);
        }

        static Message parse(ByteBuffer piece) throws Wrong {
            return parse(List.of(piece));
        }

        List<ByteBuffer> all(int number) {
            return fields.stream().filter(f -> f.number == number && f.kind == 2).map(Field::bytes).toList();
        }

        private Field last(int number, int kind) {
            Field found = new Field(number, kind, 0, ByteBuffer.allocate(kind == 1 ? 8 : 0));
            for (Field f : fields) {
                if (f.number == number && f.kind == kind) found = f;
            }
            return found;
        }

        long integer(int number) {
            return last(number, 0).integer;
        }

        double real(int number) {
            return last(number, 1).bytes.order(ByteOrder.LITTLE_ENDIAN).getDouble(0);
        }

        ByteBuffer data(int number) {
            return last(number, 2).bytes;
        }

        String text(int number) throws Wrong {
            return Wire.text(data(number));
        }

        /** The integers of a list, packed or not. If they are packed, at most one more than {@code most}. */
        long[] integers(int number, int most) throws Wrong {
            List<Long> all = new ArrayList<>();
            for (Field f : fields) {
                if (f.number == number && f.kind == 0) all.add(f.integer);
                ByteBuffer in = f.bytes.duplicate();
                while (f.number == number && f.kind == 2 && in.hasRemaining() && all.size() <= most) all.add(varint(in));
            }
            return all.stream().mapToLong(Long::longValue).toArray();
        }

        /** The {@code count} doubles of a list, packed or not, from -1e30 to 1e30. */
        double[] doubles(int number, int count) throws Wrong {
            double[] all = new double[count];
            int found = 0;
            for (Field f : fields) {
                if (f.number != number || f.kind != 1 && f.kind != 2) continue;
                ByteBuffer in = f.bytes.duplicate().order(ByteOrder.LITTLE_ENDIAN);
                if (in.remaining() % 8 != 0) throw new Wrong(MALFORMED);
                while (in.hasRemaining()) {
                    double v = in.getDouble();
                    if (found == count || !(Math.abs(v) <= 1e30)) throw new Wrong(VALUE);
                    all[found++] = v;
                }
            }
            if (found != count) throw new Wrong(VALUE);
            return all;
        }
    }

    private static String text(ByteBuffer bytes) throws Wrong {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(bytes.duplicate()).toString();
        } catch (CharacterCodingException e) {
            throw new Wrong(MALFORMED);
        }
    }

    private static long varint(ByteBuffer in) throws Wrong {
        long v = 0;
        for (int shift = 0; shift < 70 && in.hasRemaining(); shift += 7) {
            byte one = in.get();
            v |= shift < 64 ? (long) (one & 127) << shift : 0;
            if (one >= 0) return v;
        }
        throw new Wrong(MALFORMED);
    }

    /** The next field. A group is unknown and skipped. */
    private static Field field(ByteBuffer in, int depth) throws Wrong {
        long tag = varint(in);
        int kind = (int) (tag & 7);
        long number = tag >>> 3;
        if (number == 0 || tag >>> 32 != 0 || depth > 100) throw new Wrong(MALFORMED);
        long integer = kind == 0 ? varint(in) : 0;
        long size = kind == 1 ? 8 : kind == 5 ? 4 : kind == 2 ? varint(in) : 0;
        if (kind == 3) {
            Field inner = field(in, depth + 1);
            while (inner.kind != 4) inner = field(in, depth + 1);
            if (inner.number != number) throw new Wrong(MALFORMED);
        }
        if (kind > 5 || size < 0 || size > in.remaining()) throw new Wrong(MALFORMED);
        ByteBuffer bytes = in.slice(in.position(), (int) size);
        in.position(in.position() + (int) size);
        return new Field(number, kind, integer, bytes);
    }

    /** The leaves of actions: a primitive array for each. */
    static Object[] readActions(Message m, List<Space.Leaf> leaves, int n) throws Wrong {
        List<ByteBuffer> arrays = m.all(1);
        if (arrays.size() != leaves.size()) throw new Wrong(VALUE);
        Object[] all = new Object[leaves.size()];
        for (int i = 0; i < all.length; i++) {
            Space.Leaf leaf = leaves.get(i);
            Message array = Message.parse(arrays.get(i));
            long[] shape = array.integers(2, leaf.shape.length + 1);
            boolean fits = shape.length == leaf.shape.length + 1 && shape[0] == n && array.integer(1) == leaf.dtype.number();
            for (int k = 0; fits && k < leaf.shape.length; k++) fits = shape[k + 1] == leaf.shape[k];
            if (!fits || !leaf.legal(array.data(3), n, true, null)) throw new Wrong(VALUE);
            all[i] = leaf.unpack(array.data(3));
        }
        return all;
    }

    /** The names of the parameters in a welcome. */
    static List<String> readNames(Message m) throws Wrong {
        List<String> names = new ArrayList<>();
        for (ByteBuffer bytes : m.all(9)) {
            if (names.size() == 64 || bytes.remaining() > 256) throw new Wrong(LIMIT);
            String name = text(bytes);
            if (!name.matches("\\P{Cc}+") || names.contains(name)) throw new Wrong(VALUE);
            names.add(name);
        }
        return names;
    }
}
