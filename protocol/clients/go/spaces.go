package rlx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"sort"
)

// A Dtype is an element type, as numbered on the wire.
type Dtype uint32

// The element types. A Bool is a byte, 0 or 1; a Float16 is its 16 bits.
const (
	Bool Dtype = iota + 1
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	Float16
	Float32
	Float64
)

var sizes = [13]int{0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8}

type kind int

const (
	box kind = iota + 1
	discrete
	multiDiscrete
	multiBinary
	tuple
	dict
)

// A Space is the set of possible observations or actions of one environment. Make one with Box, Discrete,
// MultiDiscrete, MultiBinary, Tuple or Dict.
type Space struct {
	kind      kind
	dtype     Dtype
	shape     []uint32
	low, high []float64
	n, start  int64
	nvec      []int64
	spaces    []Space
	keys      []string
}

// Box is the space of arrays of a shape. low and high have one bound for all elements, one for each, or none.
func Box(dtype Dtype, shape []uint32, low, high []float64) Space {
	return Space{kind: box, dtype: dtype, shape: shape, low: low, high: high}
}

// Discrete is the space of start, ..., start+n-1.
func Discrete(n, start int64) Space { return Space{kind: discrete, n: n, start: start} }

// MultiDiscrete is a vector of choices: element i is one of 0, ..., nvec[i]-1.
func MultiDiscrete(nvec ...int64) Space { return Space{kind: multiDiscrete, nvec: nvec} }

// MultiBinary is the space of arrays of bits, as int8.
func MultiBinary(shape ...uint32) Space { return Space{kind: multiBinary, shape: shape} }

// Tuple is an ordered list of spaces.
func Tuple(spaces ...Space) Space { return Space{kind: tuple, spaces: spaces} }

// Dict is a set of named spaces. Its leaves are in the order of the keys.
func Dict(parts map[string]Space) Space {
	s := Space{kind: dict}
	for key := range parts {
		s.keys = append(s.keys, key)
	}
	sort.Strings(s.keys) // the bytes of UTF-8 are in the order of code points
	for _, key := range s.keys {
		s.spaces = append(s.spaces, parts[key])
	}
	return s
}

// A leaf is one array of a value.
type leaf struct {
	space    Space
	dtype    Dtype
	shape    []uint32 // of one environment
	elements int
}

func (l leaf) size() int { return l.elements * sizes[l.dtype] }

func size(leaves []leaf) (total int) {
	for _, l := range leaves {
		total += l.size()
	}
	return total
}

// leaves lists the arrays of a value of the space.
func (s Space) leaves() (all []leaf, err error) {
	if s.kind == tuple || s.kind == dict {
		for _, part := range s.spaces {
			some, err := part.leaves()
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
	l := leaf{space: s, dtype: Int64, shape: s.shape, elements: 1}
	switch s.kind {
	case box:
		l.dtype = s.dtype
	case multiBinary:
		l.dtype = Int8
	case discrete:
		if s.n < 1 || s.start > math.MaxInt64-(s.n-1) {
			return nil, fmt.Errorf("a discrete of %d numbers from %d: at least 1, and all must fit int64", s.n, s.start)
		}
	case multiDiscrete:
		l.shape = []uint32{uint32(len(s.nvec))}
	}
	for _, axis := range l.shape {
		if axis < 1 || l.elements > math.MaxInt32/int(axis) {
			return nil, fmt.Errorf("a space has the shape %v: axes must be at least 1, elements at most 2^31-1", l.shape)
		}
		l.elements *= int(axis)
	}
	bounds := func(n int) bool { return n <= 1 || n == l.elements }
	if s.kind == 0 || l.dtype < Bool || l.dtype > Float64 || !bounds(len(s.low)) || !bounds(len(s.high)) {
		return nil, fmt.Errorf("an invalid space: kind %d, dtype %d, bounds %v and %v", s.kind, l.dtype, s.low, s.high)
	}
	return []leaf{l}, nil
}

func bound(bounds []float64, i int) float64 {
	if len(bounds) == 1 {
		return bounds[0]
	}
	return bounds[i]
}

// Half of the last place of a Float16, a Float32 and a Float64: bounds of a box are rounded to its dtype.
var halfUnit = map[Dtype]float64{Float16: 1. / (1 << 11), Float32: 1. / (1 << 24)}

// legal returns whether data has n values of the leaf, and the values of rows (nil: all) are in its space. Bounds of a box
// apply only to actions.
func (l leaf) legal(data []byte, n int, rows []bool, bounds bool) bool {
	if len(data) != n*l.size() {
		return false
	}
	if l.space.kind == box && !bounds && l.dtype != Bool && l.dtype < Float16 {
		return true
	}
	step := sizes[l.dtype]
	for i := 0; i < n*l.elements; i++ {
		if (rows == nil || rows[i/l.elements]) && !l.inRange(data[i*step:(i+1)*step], i%l.elements, bounds) {
			return false
		}
	}
	return true
}

func (l leaf) inRange(b []byte, i int, bounds bool) bool {
	s := l.space
	switch {
	case l.dtype == Bool || s.kind == multiBinary:
		return b[0] <= 1
	case s.kind == discrete:
		v := int64(binary.LittleEndian.Uint64(b))
		return v >= s.start && uint64(v)-uint64(s.start) <= uint64(s.n-1)
	case s.kind == multiDiscrete:
		v := int64(binary.LittleEndian.Uint64(b))
		return v >= 0 && v < s.nvec[i]
	}
	v, slack := number(l.dtype, b), halfUnit[l.dtype]
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return false
	}
	low, high := math.Inf(-1), math.Inf(1)
	if bounds && len(s.low) > 0 {
		low = bound(s.low, i)
	}
	if bounds && len(s.high) > 0 {
		high = bound(s.high, i)
	}
	return !(v < low-slack*math.Abs(low)) && !(v > high+slack*math.Abs(high)) // NaN: no bound
}

func number(dtype Dtype, b []byte) float64 {
	little := binary.LittleEndian
	switch dtype {
	case Uint8:
		return float64(b[0])
	case Uint16:
		return float64(little.Uint16(b))
	case Uint32:
		return float64(little.Uint32(b))
	case Uint64:
		return float64(little.Uint64(b))
	case Int8:
		return float64(int8(b[0]))
	case Int16:
		return float64(int16(little.Uint16(b)))
	case Int32:
		return float64(int32(little.Uint32(b)))
	case Int64:
		return float64(int64(little.Uint64(b)))
	case Float32:
		return float64(math.Float32frombits(little.Uint32(b)))
	case Float64:
		return math.Float64frombits(little.Uint64(b))
	}
	bits := little.Uint16(b)
	exponent, fraction := int(bits>>10&31), float64(bits&1023)
	sign := 1 - 2*float64(bits>>15)
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 31:
		return math.NaN()
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}

// A Number is the type of an array's elements.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// Bytes converts numbers to a leaf: little-endian bytes.
func Bytes[T Number](numbers []T) []byte {
	var to bytes.Buffer
	binary.Write(&to, binary.LittleEndian, numbers) // writes to a buffer do not fail, and T has a fixed size
	return to.Bytes()
}

// Values converts a leaf to numbers. T must have the size of its dtype.
func Values[T Number](leaf []byte) []T {
	var one T
	numbers := make([]T, len(leaf)/binary.Size(one))
	binary.Read(bytes.NewReader(leaf), binary.LittleEndian, numbers)
	return numbers
}
