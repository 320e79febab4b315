# frozen_string_literal: true

# Spaces, and the leaves of their values on the wire.
module RLX
  # Element types: number on the wire, bytes, format of Array#pack. A float16 leaf must be a String of its bytes.
  DTYPES = {
    bool: [1, 1, "C*"], uint8: [2, 1, "C*"], uint16: [3, 2, "S<*"], uint32: [4, 4, "L<*"], uint64: [5, 8, "Q<*"],
    int8: [6, 1, "c*"], int16: [7, 2, "s<*"], int32: [8, 4, "l<*"], int64: [9, 8, "q<*"],
    float16: [10, 2, "S<*"], float32: [11, 4, "e*"], float64: [12, 8, "E*"]
  }.freeze

  # A space. Make one with RLX.box, discrete, multi_discrete, multi_binary, tuple or dict.
  Space = Struct.new(:kind, :dtype, :shape, :low, :high, :n, :start, :nvec, :parts, keyword_init: true) do
    # Protobuf of rlx.v1.Space, with or without the bounds of boxes.
    def wire(bounds = true)
      content = case kind
                when 1
                  ends = bounds ? Wire.doubles(3, low) + Wire.doubles(4, high) : ""
                  Wire.integer(1, DTYPES[dtype][0]) + Wire.packed(2, shape) + ends
                when 2 then Wire.integer(1, n) + Wire.integer(2, start)
                when 3 then Wire.packed(1, nvec)
                when 4 then Wire.packed(1, shape)
                when 5 then parts.map { |part| Wire.bytes(1, part.wire(bounds)) }.join
                else parts.map { |key, part| Wire.bytes(1, Wire.text(1, key) + Wire.bytes(2, part.wire(bounds))) }.join
                end
      Wire.bytes(kind, content)
    end

    # The arrays of a value, in order. The bytes of UTF-8 are in the order of code points.
    def leaves
      return parts.flat_map(&:leaves) if kind == 5
      return parts.sort_by { |key, _| key.b }.flat_map { |_, part| part.leaves } if kind == 6

      [Leaf.new(self)]
    end
  end

  module_function

  # Arrays of a shape. +low+ and +high+: a number, one for each element, or nil for no bound.
  def box(dtype, shape, low: [], high: [])
    DTYPES.fetch(dtype) { raise ArgumentError, "unknown dtype #{dtype.inspect}: #{DTYPES.keys.join(", ")}" }
    Space.new(kind: 1, dtype: dtype, shape: shape, low: Array(low).map(&:to_f), high: Array(high).map(&:to_f))
  end

  # The integers start, ..., start + n - 1.
  def discrete(n, start: 0)
    Space.new(kind: 2, dtype: :int64, shape: [], n: n, start: start)
  end

  # A vector of choices: element i is one of 0, ..., nvec[i] - 1.
  def multi_discrete(nvec)
    Space.new(kind: 3, dtype: :int64, shape: [nvec.size], nvec: nvec)
  end

  # Bits of a shape, as int8.
  def multi_binary(shape)
    Space.new(kind: 4, dtype: :int8, shape: shape)
  end

  # An ordered list of spaces.
  def tuple(spaces)
    Space.new(kind: 5, parts: spaces)
  end

  # Named spaces: a Hash.
  def dict(spaces)
    Space.new(kind: 6, parts: spaces)
  end

  # One array of a value.
  class Leaf
    HALF_UNIT = { float16: 1.0 / 2048, float32: 1.0 / 16_777_216 }.freeze # bounds are rounded to the dtype

    attr_reader :size, :number, :shape

    def initialize(space)
      @space = space
      @dtype = space.dtype
      @number, @bytes, @format = DTYPES[@dtype]
      @shape = space.shape
      @elements = @shape.inject(1, :*)
      @size = @elements * @bytes
      unless @elements.between?(1, 2**31 - 1) && @shape.all?(&:positive?)
        raise ArgumentError, "a space has the shape #{@shape}: axes must be at least 1, elements at most 2^31 - 1"
      end
      @low, @high = [[space.low, -1], [space.high, 1]].map { |bounds, sign| bounds(bounds || [], sign) }
      @float = @dtype.to_s.start_with?("float")
      @free = space.kind == 1 && @dtype != :bool # except values that are not finite
      top = 1 << 8 * @bytes
      @whole = (@dtype.to_s.start_with?("int") ? -top / 2...top / 2 : 0...top) unless @float # the range of the dtype
    end

    # The bytes of numbers (an Array, or a String that holds them already) for n environments. The values of rows that are
    # +hidden+ are not checked. +kind+: :observation, or :action, whose values must be within the bounds.
    def pack(values, count, hidden = [], kind = :observation)
      values = Array(values) unless values.is_a?(String)
      data = values.is_a?(String) ? values.b : bytes_of(values, hidden, kind)
      unless data.bytesize == count * @size
        raise ArgumentError, "a leaf of the #{kind} has #{data.bytesize} bytes; #{count} x #{@size} are needed"
      end
      bounded = kind == :action
      if !@free || @float || bounded
        values = unpack(data) if values.is_a?(String) || @dtype == :float32 # a number beyond float32 becomes infinite
        values = values.each_slice(@elements).reject.with_index { |_, i| hidden[i] }.flatten(1) if hidden.any?
        unless legal?(values, bounded)
          raise ArgumentError, "a leaf of the #{kind} has a value that is NaN, infinite or outside the space"
        end
      end
      data
    end

    def unpack(data)
      numbers = data.unpack(@format)
      @dtype == :float16 ? numbers.map { |bits| half(bits) } : numbers
    end

    def legal?(values, bounds)
      case @space.kind
      when 2 then values.all? { |v| v >= @space.start && v < @space.start + @space.n }
      when 3 then values.each_with_index.all? { |v, i| v >= 0 && v < @space.nvec[i % @elements] }
      when 4 then values.all? { |v| [0, 1].include?(v) }
      else
        return values.all? { |v| [0, 1].include?(v) } if @dtype == :bool
        return false if @float && !values.all? { |v| v.to_f.finite? }

        !bounds || values.each_with_index.all? { |v, i| v >= @low[i % @low.size] && v <= @high[i % @high.size] }
      end
    end

    private

    def bytes_of(numbers, hidden, kind)
      raise ArgumentError, "a leaf of float16 must be a String of its bytes" if @dtype == :float16

      numbers = numbers.each_with_index.map { |v, i| hidden[i / @elements] && !fits?(v) ? 0 : v } if hidden.any?
      wrong = @whole && numbers.find { |v| !(v.is_a?(Integer) && @whole.cover?(v)) }
      raise ArgumentError, "a leaf of the #{kind} has a value that is not #{@dtype}: #{wrong.inspect}" if wrong

      numbers.pack(@format)
    rescue TypeError, RangeError => e
      raise ArgumentError, "a leaf of the #{kind}: #{e.message}"
    end

    # Whether the dtype has the number.
    def fits?(value)
      @whole ? value.is_a?(Integer) && @whole.cover?(value) : value.is_a?(Numeric)
    end

    def bounds(given, sign)
      return [sign * Float::INFINITY] if given.empty?
      raise ArgumentError, "a box of #{@elements} elements has #{given.size} bounds" unless [1, @elements].include?(given.size)

      given.map { |bound| bound.finite? ? bound + sign * (HALF_UNIT[@dtype] || 0) * bound.abs : bound }
    end

    def half(bits)
      exponent = bits >> 10 & 31
      size = exponent.zero? ? Math.ldexp(bits & 1023, -24) : Math.ldexp(1024 + (bits & 1023), exponent - 25)
      size = Float::NAN if exponent == 31
      bits >> 15 == 1 ? -size : size
    end
  end
end
