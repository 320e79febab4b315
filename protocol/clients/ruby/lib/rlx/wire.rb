# frozen_string_literal: true

module RLX
  # The part of Protobuf that RLX needs.
  module Wire
    # Bytes that are not a valid message. `code` is an error code of RLX.md, section 9.
    class Wrong < StandardError
      attr_reader :code

      def initialize(code)
        @code = code
        super("code #{code}")
      end
    end

    MALFORMED = 1
    VALUE = 8
    LIMIT = 9

    module_function

    def varint(value)
      return value.chr if value.between?(0, 127)

      value &= 0xffff_ffff_ffff_ffff
      bytes = []
      while value > 127
        bytes << (value & 127 | 128)
        value >>= 7
      end
      (bytes << value).pack("C*")
    end

    def integer(field, value)
      value.zero? ? "".b : varint(field << 3) + varint(value)
    end

    def bytes(field, data)
      varint(field << 3 | 2) + varint(data.bytesize) + data
    end

    def text(field, text)
      return "".b if text.empty?
      raise ArgumentError, "#{text.inspect} is not a text" unless (text = text.encode("UTF-8")).valid_encoding?

      bytes(field, text.b)
    rescue EncodingError => e
      raise ArgumentError, "not a text: #{e.message}"
    end

    def double(field, value)
      varint(field << 3 | 1) + [value].pack("E")
    end

    def doubles(field, values)
      values.empty? ? "".b : bytes(field, values.pack("E*"))
    end

    def packed(field, values)
      values.empty? ? "".b : bytes(field, values.map { |value| varint(value) }.join)
    end

    def mask(field, mask)
      mask&.any? ? bytes(field, mask.map { |one| one ? 1 : 0 }.pack("C*")) : "".b
    end

    def arrays(field, leaves, data, count)
      leaves.zip(data).map do |leaf, one|
        bytes(field, integer(1, leaf.number) + packed(2, [count, *leaf.shape]) + bytes(3, one))
      end.join
    end

    def frame(kind, content)
      payload = bytes(kind, content)
      [payload.bytesize].pack("N") + payload
    end

    # The fields of a message: [number, kind, an Integer or a String]. Pieces of a message are merged as Protobuf
    # requires, as if their bytes were joined. Raises Wrong.
    def parse(*pieces)
      pieces.flat_map do |piece|
        reader = Reader.new(piece)
        fields = []
        fields << reader.field until reader.end?
        fields.each { |_, kind, _| raise Wrong, MALFORMED if kind == 4 }
      end
    end

    def all(message, number)
      message.select { |n, kind, _| n == number && kind == 2 }.map(&:last)
    end

    def last(message, number, kind, default)
      found = message.reverse_each.find { |n, k, _| n == number && k == kind }
      found ? found[2] : default
    end

    def read_integer(message, number)
      last(message, number, 0, 0)
    end

    def read_double(message, number)
      last(message, number, 1, "\0" * 8).unpack1("E")
    end

    def read_text(message, number)
      utf8(last(message, number, 2, ""))
    end

    def utf8(data)
      text = data.dup.force_encoding("UTF-8")
      text.valid_encoding? ? text : raise(Wrong, MALFORMED)
    end

    # The leaves of actions: a flat Array of numbers for each.
    def read_actions(message, leaves, count)
      arrays = all(message, 1)
      raise Wrong, VALUE unless arrays.size == leaves.size

      leaves.zip(arrays).map do |leaf, array|
        fields = parse(array)
        due = [count, *leaf.shape]
        data = last(fields, 3, 2, "")
        raise Wrong, VALUE unless read_integers(fields, 2, due.size) == due && read_integer(fields, 1) == leaf.number &&
                                  data.bytesize == count * leaf.size

        values = leaf.unpack(data)
        leaf.legal?(values, true) ? values : raise(Wrong, VALUE)
      end
    end

    # The parameters of a welcome: their names, and N values for each. Without the capability there are none.
    def read_parameters(message, supported, count)
      names = all(message, 9)
      raise Wrong, VALUE unless supported || names.empty?
      raise Wrong, LIMIT if names.size > 64 || names.any? { |name| name.bytesize > 256 }

      names = names.map { |name| utf8(name) }
      raise Wrong, VALUE if names.uniq! || names.any? { |name| name.empty? || name.match?(/[\p{C}\p{Z}&&[^ ]]/) }

      [names, read_numbers(message, 10, count * names.size)]
    end

    # New parameters in actions: environments, whose indices increase and are below +most+, and +size+ values for each.
    def read_new_parameters(message, most, size)
      environments = read_integers(message, 2, most)
      raise Wrong, VALUE unless [-1, *environments, most].each_cons(2).all? { |one, after| one < after }

      [environments, read_numbers(message, 3, environments.size * size)]
    end

    # Reading ends if there are more than +most+.
    def read_integers(message, number, most)
      integers = []
      message.each do |n, kind, value|
        next unless n == number && [0, 2].include?(kind)
        next integers << value if kind.zero?

        reader = Reader.new(value)
        integers << reader.varint until reader.end? || integers.size > most
      end
      integers
    end

    # +count+ numbers from -1e30 to 1e30.
    def read_numbers(message, number, count)
      data = message.select { |n, kind, _| n == number && [1, 2].include?(kind) }.map(&:last)
      raise Wrong, MALFORMED unless data.all? { |one| (one.bytesize % 8).zero? }
      raise Wrong, VALUE unless data.sum(&:bytesize) == 8 * count

      numbers = data.join.unpack("E*")
      numbers.all? { |one| one.abs <= 1e30 } ? numbers : raise(Wrong, VALUE)
    end

    # Reads fields out of a String.
    class Reader
      def initialize(data)
        @data = data
        @at = 0
      end

      def end?
        @at == @data.bytesize
      end

      def varint
        value = 0
        10.times do |i|
          byte = @data.getbyte(@at) || raise(Wrong, MALFORMED)
          @at += 1
          value |= (byte & 127) << 7 * i
          return value & 0xffff_ffff_ffff_ffff if byte < 128
        end
        raise Wrong, MALFORMED
      end

      # The next one. A group is unknown and skipped.
      def field(depth = 0)
        tag = varint
        number = tag >> 3
        kind = tag & 7
        raise Wrong, MALFORMED if number.zero? || number >= 1 << 29 || depth > 100

        value = case kind
                when 0 then varint
                when 1 then take(8)
                when 2 then take(varint)
                when 3 then skip(number, depth)
                when 4 then nil
                when 5 then take(4)
                else raise Wrong, MALFORMED
                end
        [number, kind, value]
      end

      private

      def take(size)
        raise Wrong, MALFORMED if size > @data.bytesize - @at

        @at += size
        @data.byteslice(@at - size, size)
      end

      def skip(number, depth)
        loop do
          inner, kind, = field(depth + 1)
          next unless kind == 4

          return nil if inner == number

          raise Wrong, MALFORMED
        end
      end
    end
  end
end
