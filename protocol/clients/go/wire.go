package rlx

import (
	"encoding/binary"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Messages of the client, then those of the server, by the number of their field.
const (
	hello, initial, step, reset, metrics, ping, pong, bye                               = 1, 2, 3, 4, 5, 6, 7, 8
	welcome, actions, returns, failure, finished, serverPing, serverPong, serverGoodbye = 1, 2, 3, 4, 5, 6, 7, 8
)

// A part is Protobuf that is being written.
type part []byte

func (p part) varint(v uint64) part {
	for ; v > 127; v >>= 7 {
		p = append(p, byte(v)|128)
	}
	return append(p, byte(v))
}

func (p part) integer(field uint64, v uint64) part {
	if v == 0 {
		return p
	}
	return p.varint(field << 3).varint(v)
}

func (p part) bytes(field uint64, data []byte) part {
	return append(p.varint(field<<3|2).varint(uint64(len(data))), data...)
}

func (p part) text(field uint64, text string) part {
	if text == "" {
		return p
	}
	return p.bytes(field, []byte(text))
}

func (p part) double(v float64) part {
	return append(p, binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))...)
}

func (p part) doubles(field uint64, numbers []float64) part {
	if len(numbers) == 0 {
		return p
	}
	p = p.varint(field<<3 | 2).varint(uint64(8 * len(numbers)))
	for _, v := range numbers {
		p = p.double(v)
	}
	return p
}

func (p part) mask(field uint64, mask []bool) part {
	any, data := false, make([]byte, len(mask))
	for i, one := range mask {
		if one {
			any, data[i] = true, 1
		}
	}
	if !any {
		return p
	}
	return p.bytes(field, data)
}

func packed[T ~uint32 | ~int64 | ~int](numbers []T) (p part) {
	for _, v := range numbers {
		p = p.varint(uint64(v))
	}
	return p
}

// space writes a space, with or without the bounds of boxes.
func (p part) space(field uint64, s Space, bounds bool) part {
	var content part
	switch s.kind {
	case box:
		content = content.integer(1, uint64(s.dtype))
		if len(s.shape) > 0 {
			content = content.bytes(2, packed(s.shape))
		}
		if bounds {
			content = content.doubles(3, s.low).doubles(4, s.high)
		}
	case discrete:
		content = content.integer(1, uint64(s.n)).integer(2, uint64(s.start))
	case multiDiscrete:
		content = content.bytes(1, packed(s.nvec))
	case multiBinary:
		if len(s.shape) > 0 {
			content = content.bytes(1, packed(s.shape))
		}
	case tuple:
		for _, one := range s.spaces {
			content = content.space(1, one, bounds)
		}
	case dict:
		for i, one := range s.spaces {
			content = content.bytes(1, part{}.text(1, s.keys[i]).space(2, one, bounds))
		}
	}
	return p.bytes(field, part{}.bytes(uint64(s.kind), content))
}

func (p part) leaves(field uint64, leaves []leaf, data [][]byte, n int) part {
	for i, one := range data {
		shape := packed(append([]uint32{uint32(n)}, leaves[i].shape...))
		head := part{}.integer(1, uint64(leaves[i].dtype)).bytes(2, shape).varint(3<<3 | 2).varint(uint64(len(one)))
		p = append(append(p.varint(field<<3|2).varint(uint64(len(head)+len(one))), head...), one...)
	}
	return p
}

func (p part) episodes(field uint64, episodes []Episode) part {
	for _, e := range episodes {
		one := part{}.integer(1, uint64(e.Environment)).varint(2<<3|1).double(e.Return).integer(3, uint64(e.Length))
		p = p.bytes(field, one)
	}
	return p
}

// frame wraps the content of a message in a frame.
func frame(kind uint64, content part) []byte {
	payload := part{}.bytes(kind, content)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// A field that was read: an integer, or bytes (also of a fixed number).
type field struct {
	number, kind, integer uint64
	bytes                 []byte
}

// A message is the fields of one, in their order.
type message []field

// parse reads a message. Pieces of a message are merged as Protobuf requires, as if their bytes were joined.
func parse(pieces ...[]byte) (m message, ok bool) {
	for _, data := range pieces {
		for len(data) > 0 {
			f, rest, ok := next(data, 0)
			if !ok || f.kind == 4 {
				return nil, false
			}
			m, data = append(m, f), rest
		}
	}
	return m, true
}

// all returns the bytes of every field with a number: texts, parts, packed lists.
func (m message) all(number uint64) (found [][]byte) {
	for _, f := range m {
		if f.number == number && f.kind == 2 {
			found = append(found, f.bytes)
		}
	}
	return found
}

func (m message) integer(number uint64) (v uint64) {
	for _, f := range m {
		if f.number == number && f.kind == 0 {
			v = f.integer
		}
	}
	return v
}

func (m message) double(number uint64) (v float64) {
	for _, f := range m {
		if f.number == number && f.kind == 1 {
			v = math.Float64frombits(binary.LittleEndian.Uint64(f.bytes))
		}
	}
	return v
}

// integers returns a list of at most `most` integers, packed or not.
func (m message) integers(number uint64, most int) (all []uint64, code Code) {
	for _, f := range m {
		if f.number == number && f.kind == 0 {
			all = append(all, f.integer)
		}
		for rest := f.bytes; f.number == number && f.kind == 2 && len(rest) > 0 && len(all) <= most; {
			v, size := binary.Uvarint(rest)
			if size <= 0 {
				return nil, Malformed
			}
			all, rest = append(all, v), rest[size:]
		}
		if len(all) > most {
			return nil, InvalidValue
		}
	}
	return all, 0
}

// doubles returns a list of n numbers from -1e30 to 1e30, packed or not.
func (m message) doubles(number uint64, n int) (all []float64, code Code) {
	for _, f := range m {
		if f.number != number || (f.kind != 1 && f.kind != 2) {
			continue
		}
		if len(f.bytes)%8 != 0 {
			return nil, Malformed
		}
		for rest := f.bytes; len(rest) > 0; rest = rest[8:] {
			v := math.Float64frombits(binary.LittleEndian.Uint64(rest))
			if len(all) == n || !(math.Abs(v) <= 1e30) {
				return nil, InvalidValue
			}
			all = append(all, v)
		}
	}
	if len(all) != n {
		return nil, InvalidValue
	}
	return all, 0
}

// text returns a text. It sets ok to false if it is not valid UTF-8.
func (m message) text(number uint64, ok *bool) (text string) {
	for _, one := range m.all(number) {
		*ok = *ok && utf8.Valid(one)
		text = string(one)
	}
	return text
}

// next reads a field. A group is unknown and skipped.
func next(data []byte, depth int) (f field, rest []byte, ok bool) {
	tag, n := binary.Uvarint(data)
	if n <= 0 || tag>>3 == 0 || tag>>32 != 0 || depth > 100 {
		return f, nil, false
	}
	f.number, f.kind, data = tag>>3, tag&7, data[n:]
	size := uint64(0)
	switch f.kind {
	case 0:
		if f.integer, n = binary.Uvarint(data); n <= 0 {
			return f, nil, false
		}
		return f, data[n:], true
	case 1:
		size = 8
	case 2:
		if size, n = binary.Uvarint(data); n <= 0 {
			return f, nil, false
		}
		data = data[n:]
	case 3:
		inner := field{}
		for ok = true; ok && inner.kind != 4; {
			inner, data, ok = next(data, depth+1)
		}
		return f, data, ok && inner.number == f.number
	case 4:
		return f, data, true
	case 5:
		size = 4
	default:
		return f, nil, false
	}
	if size > uint64(len(data)) {
		return f, nil, false
	}
	f.bytes = data[:size]
	return f, data[size:], true
}

// readActions returns the leaves of actions and checks them against the space.
func readActions(m message, leaves []leaf, n int) ([][]byte, Code) {
	arrays := m.all(1)
	if len(arrays) != len(leaves) {
		return nil, InvalidValue
	}
	data := make([][]byte, len(leaves))
	for i, l := range leaves {
		array, ok := parse(arrays[i])
		if !ok {
			return nil, Malformed
		}
		shape, code := array.integers(2, 1+len(l.shape))
		if code != 0 {
			return nil, code
		}
		if all := array.all(3); len(all) > 0 {
			data[i] = append([]byte{}, all[len(all)-1]...) // a copy, because the buffer is reused
		}
		fits := len(shape) == 1+len(l.shape) && shape[0] == uint64(n) && array.integer(1) == uint64(l.dtype)
		for k := 0; fits && k < len(l.shape); k++ {
			fits = shape[k+1] == uint64(l.shape[k])
		}
		if !fits || !l.legal(data[i], n, nil, true) {
			return nil, InvalidValue
		}
	}
	return data, 0
}

// readNames returns the names of parameters.
func readNames(m message) (names []string, code Code) {
	all, used := m.all(9), map[string]bool{}
	if len(all) > 64 {
		return nil, LimitExceeded
	}
	for _, one := range all {
		name := string(one)
		switch {
		case !utf8.Valid(one):
			return nil, Malformed
		case len(name) > 256:
			return nil, LimitExceeded
		case name == "" || used[name] || strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0:
			return nil, InvalidValue
		}
		used[name], names = true, append(names, name)
	}
	return names, 0
}
