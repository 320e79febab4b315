package rlx

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"math/rand"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A server that answers each request with the next frame of its script. After the last one it disconnects.
func serve(t *testing.T, scripts ...[][]byte) (address string, told *bytes.Buffer, done chan bool) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	told, done = &bytes.Buffer{}, make(chan bool)
	go func() {
		defer close(done)
		defer listener.Close()
		for _, script := range scripts {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			for _, answer := range script {
				for asked := false; !asked; { // metrics, pongs and byes need no answer
					var head [4]byte
					if _, err := io.ReadFull(conn, head[:]); err != nil {
						break
					}
					payload := make([]byte, int(head[2])<<8|int(head[3]))
					io.ReadFull(conn, payload)
					told.Write(append(head[:], payload...))
					asked = payload[0]>>3 <= 4 || payload[0]>>3 == 6
				}
				conn.Write(answer)
			}
			conn.Close()
		}
	}()
	return listener.Addr().String(), told, done
}

func unhex(text string) []byte {
	data, _ := hex.DecodeString(text)
	return data
}

// The server's frames of section 13.
var (
	pageWelcome = unhex("0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002")
	pageActions = unhex("0000001312110a0f08091201011a080200000000000000")
)

// welcomed is pageWelcome with more fields.
func welcomed(more part) []byte {
	return frame(welcome, append(append(part{}, pageWelcome[6:]...), more...))
}

// given is an answer with the action 0 for n environments, and more fields.
func given(n int, more part) []byte {
	content := part{}.leaves(1, []leaf{{dtype: Int64}}, [][]byte{make([]byte, 8*n)}, n)
	return frame(actions, append(content, more...))
}

// messages returns the kind and the fields of each message that the server was told.
func messages(told *bytes.Buffer) (kinds []uint64, contents []message) {
	for data := told.Bytes(); len(data) > 4; {
		size := 4 + int(data[2])<<8 + int(data[3])
		one, _ := parse(data[4:size])
		content, _ := parse(one[0].bytes)
		kinds, contents, data = append(kinds, one[0].number), append(contents, content), data[size:]
	}
	return kinds, contents
}

func point(address string) Config {
	return Config{
		Addresses: []string{address}, Environment: "Point-v0", FrameSkip: 1, Retry: -1,
		Observation: Box(Float32, []uint32{2}, nil, nil), Action: Discrete(3, 0),
	}
}

func opened(t *testing.T, config Config) *Client {
	t.Helper()
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestExampleBytesOfSpecification(t *testing.T) {
	address, told, done := serve(t, [][]byte{pageWelcome, pageActions, pageActions})
	c := opened(t, point(address))
	actions, err := c.Init([][]byte{Bytes([]float32{0.5, -0.25})}, nil)
	if err != nil || Values[int64](actions[0])[0] != 2 || c.Session != "s1" || c.Algorithm != "da3c" {
		t.Fatal(actions, err, c.Session, c.Algorithm)
	}
	if _, err = c.Step(Outcome{Reward: []float64{1}, Observation: [][]byte{Bytes([]float32{0.75, 0})}}); err != nil {
		t.Fatal(err)
	}
	<-done
	for _, due := range []string{
		"2a08506f696e742d76303801420" + "70a05080b1201024a0412020803" + "50015a01016001",
		"0000001412120a10080b120201021a080000003f000080be",
		"0000001e1a1c0a08000000000000f03f1210080b120201021a080000403f00000000",
	} {
		if !bytes.Contains(told.Bytes(), unhex(due)) {
			t.Errorf("%s is not in %x", due, told.Bytes())
		}
	}
}

func TestInvalidArgumentsAreNotSent(t *testing.T) {
	address, told, _ := serve(t, [][]byte{pageWelcome, pageActions})
	c := opened(t, point(address))
	seen := [][]byte{Bytes([]float32{0, 0})}
	if _, err := c.Init([][]byte{Bytes([]float32{0, float32(math.NaN())})}, nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if _, err := c.Init(seen, nil); err != nil {
		t.Fatal(err)
	}
	size := told.Len()
	for _, o := range []Outcome{
		{Reward: []float64{2e15}, Observation: seen},
		{Reward: []float64{math.NaN()}, Observation: seen},
		{Reward: []float64{1, 1}, Observation: seen},
		{Reward: []float64{1}, Observation: [][]byte{{1}}},
		{Reward: []float64{1}, Observation: seen, Terminated: []bool{true}},
		{Reward: []float64{1}, Observation: seen, FinalObservation: seen},
		{Reward: []float64{1}, Observation: seen, Episodes: []Episode{{0, 1, 1}}},
	} {
		if _, err := c.Step(o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := c.Reset(Outcome{Reward: []float64{1}, Truncated: []bool{true}}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	for name, value := range map[string]float64{"": 1, "x": math.NaN(), "y": 2e30} {
		if err := c.Metric(name, value); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if told.Len() != size {
		t.Error("something was sent")
	}
	for _, space := range []Space{{}, Discrete(0, 0), Discrete(2, math.MaxInt64), Box(13, nil, nil, nil), Box(Float32, []uint32{0}, nil, nil), Box(Float32, []uint32{65536, 65536}, nil, nil)} {
		config := point(address)
		config.Action = space
		if _, err := New(config); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", space, err)
		}
	}
}

func TestReconnects(t *testing.T) {
	full := frame(failure, part{}.integer(1, 11).text(2, "full").integer(3, 1).varint(4<<3|1).double(0.75))
	end := frame(finished, part{}.integer(2, 123456))
	address, told, done := serve(t, [][]byte{pageWelcome, pageActions}, [][]byte{full}, [][]byte{pageWelcome, pageActions, end})
	config := point("127.0.0.1:1")
	config.Addresses, config.Retry = append([]string{address}, address), time.Minute
	var reasons []string
	config.OnRetry = func(reason error, _ time.Duration) { reasons = append(reasons, reason.Error()) }
	c := opened(t, config)
	seen := [][]byte{Bytes([]float32{0, 0})}
	if _, err := c.Init(seen, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Step(Outcome{Reward: []float64{1}, Observation: seen}); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := c.Init(seen, nil); err != nil {
		t.Fatal(err)
	}
	if len(reasons) != 2 || reasons[1] != "full" {
		t.Error(reasons)
	}
	if took := time.Since(began); took < time.Second { // at least 0.25 s, then the 0.75 s of the error
		t.Error(took)
	}
	_, err := c.Step(Outcome{Reward: []float64{1}, Observation: seen})
	var e *Error
	if !errors.Is(err, ErrFinished) || !errors.As(err, &e) || e.GlobalStep != 123456 {
		t.Error(err)
	}
	if _, err = c.Init(seen, nil); !errors.Is(err, ErrFinished) {
		t.Error(err)
	}
	<-done
	if bytes.Count(told.Bytes(), unhex("6a027331")) != 2 { // the session id in the hellos of the two reconnects
		t.Errorf("%x", told.Bytes())
	}
}

func TestLongHelloOmitsBoundsOrIsRefused(t *testing.T) {
	many := Box(Float32, []uint32{9000}, make([]float64, 9000), nil)
	address, told, done := serve(t, [][]byte{pageWelcome, pageActions})
	config := point(address)
	config.Observation = Dict(map[string]Space{"key": Tuple(many)})
	config.Action = Box(Float32, []uint32{2}, []float64{-3, 5}, nil)
	c := opened(t, config)
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-done
	if told.Len() > 200 || !bytes.Contains(told.Bytes(), part{}.doubles(3, config.Action.low)) {
		t.Errorf("%x", told.Bytes())
	}
	config = point("127.0.0.1:1") // refused without an attempt to connect
	config.Action, config.Retry = many, time.Minute
	if err := opened(t, config).Connect(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "use one bound for all elements") {
		t.Error(err)
	}
}

func TestInvalidConfigs(t *testing.T) {
	for _, address := range []string{"", "localhost", "localhost:", ":7001", "localhost:0", "localhost:70010", "::1:7001", "[::1]"} {
		config := point("localhost:7001")
		config.Addresses = append(config.Addresses, address)
		if _, err := New(config); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), address) {
			t.Errorf("%q: %v", address, err)
		}
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Autoreset = []Autoreset{4} },
		func(c *Config) { c.Autoreset = []Autoreset{0} },
		func(c *Config) { c.Mode = 3 },
		func(c *Config) { c.FrameSkip = -1 },
	} {
		config := point("localhost:7001")
		change(&config)
		if _, err := New(config); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", config, err)
		}
	}
	config := point(" localhost:7001 ")
	if c := opened(t, config); c.config.Addresses[0] != "localhost:7001" || config.Addresses[0] != " localhost:7001 " {
		t.Error(c.config.Addresses, config.Addresses)
	}
}

func TestDiscreteWithNegativeStart(t *testing.T) {
	leaves, err := Discrete(6, -1).leaves()
	if err != nil {
		t.Fatal(err)
	}
	for action, due := range map[int64]Code{
		-1: 0, 4: 0, 5: InvalidValue, -2: InvalidValue, math.MaxInt64: InvalidValue, math.MinInt64: InvalidValue,
	} {
		m, _ := parse(part{}.leaves(1, leaves, [][]byte{Bytes([]int64{action})}, 1))
		if _, code := readActions(m, leaves, 1); code != due {
			t.Errorf("%d: %d", action, code)
		}
	}
}

// In a step, only the rows of ended episodes of a final observation are checked; their number and size always are.
func TestFinalObservations(t *testing.T) {
	answer := given(2, nil)
	address, told, done := serve(t, [][]byte{pageWelcome, answer, answer, frame(returns, part{}.doubles(1, []float64{0, 0}))})
	config := point(address)
	config.Environments, config.Autoreset = 2, []Autoreset{SameStep}
	c := opened(t, config)
	nan := float32(math.NaN())
	seen := [][]byte{Bytes(make([]float32, 4))}
	filled, wrong := [][]byte{Bytes([]float32{nan, nan, 1, 2})}, [][]byte{Bytes([]float32{1, 2, nan, nan})}
	if _, err := c.Init(seen, []bool{true}); !errors.Is(err, ErrInvalid) {
		t.Error("partial has too few entries:", err)
	}
	if _, err := c.Init(seen, []bool{false, true}); err != nil {
		t.Fatal(err)
	}
	size := told.Len()
	for _, final := range [][][]byte{wrong, {{1, 2}}, append(filled, filled...)} {
		o := Outcome{Reward: make([]float64, 2), Observation: seen, Truncated: []bool{false, true}, FinalObservation: final}
		if _, err := c.Step(o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", final, err)
		}
	}
	if told.Len() != size {
		t.Error("something was sent")
	}
	o := Outcome{Reward: make([]float64, 2), Observation: seen, Truncated: []bool{false, true}, FinalObservation: filled}
	if _, err := c.Step(o); err != nil {
		t.Error(err)
	}
	if _, err := c.Reset(Outcome{Reward: make([]float64, 2), FinalObservation: filled}); !errors.Is(err, ErrInvalid) {
		t.Error("in a reset every row counts:", err)
	}
	if _, err := c.Reset(Outcome{Reward: make([]float64, 2), FinalObservation: seen}); err != nil {
		t.Error(err)
	}
	<-done
}

// Two players take turns: the example of section 8. Void rows are NaN.
func TestPlayersTakeTurns(t *testing.T) {
	script := [][]byte{welcomed(part{}.integer(6, 1))}
	for i := 0; i < 7; i++ {
		script = append(script, given(2, nil))
	}
	address, told, done := serve(t, append(script, frame(returns, part{}.doubles(1, []float64{0, 0}))))
	config := point(address)
	config.Environments, config.Autoreset, config.OutOfStep = 2, []Autoreset{SameStep}, true
	c := opened(t, config)
	nan, reward := float32(math.NaN()), []float64{0, 0}
	zero, none := [][]byte{Bytes(make([]float32, 4))}, [][]byte{Bytes([]float32{nan, nan, nan, nan})}
	first, second := [][]byte{Bytes([]float32{1, 2, nan, nan})}, [][]byte{Bytes([]float32{nan, nan, 3, 4})}
	both := []bool{true, true}
	masks := []string{}
	want := func(due error, fields string, err error) {
		t.Helper()
		if !errors.Is(err, due) {
			t.Fatal(err)
		}
		if due == nil {
			masks = append(masks, fields)
		}
	}
	start := func(due error, fields string, seen [][]byte, idle ...bool) {
		t.Helper()
		_, err := c.InitIdle(seen, nil, idle)
		want(due, fields, err)
	}
	step := func(due error, fields string, o Outcome) {
		t.Helper()
		o.Reward = reward
		_, err := c.Step(o)
		want(due, fields, err)
	}
	start(ErrInvalid, "", second, false, true) // row 0 is not void
	start(ErrInvalid, "", first, true)
	start(nil, "1a020001", first, false, true)
	step(ErrInvalid, "", Outcome{Observation: second, Idle: []bool{true}})
	step(ErrInvalid, "", Outcome{Observation: first, Idle: []bool{true, false}}) // row 1 is not void
	step(ErrInvalid, "", Outcome{Observation: second, Idle: []bool{true, false}, Terminated: []bool{false, true}})
	step(nil, "3202000142020100", Outcome{Observation: second, Idle: []bool{true, false}})
	step(nil, "42020001", Outcome{Observation: first, Idle: []bool{false, true}})
	step(ErrInvalid, "", Outcome{Observation: none, Idle: both, Truncated: both}) // without final observation
	step(nil, "1a02010142020101", Outcome{Observation: none, Idle: both, Terminated: both})
	step(ErrInvalid, "", Outcome{Observation: none, Idle: both, Terminated: both}) // they have left
	step(nil, "42020101", Outcome{Observation: none, Idle: both})
	step(nil, "32020101", Outcome{Observation: zero})
	step(nil, "2202010142020101", Outcome{Observation: none, Idle: both, Truncated: both, FinalObservation: zero})
	_, err := c.Reset(Outcome{Reward: reward, Truncated: both, FinalObservation: zero})
	want(nil, "", err) // they have left: nothing is truncated
	<-done
	kinds, contents := messages(told)
	for i, fields := range masks {
		var found part
		kind := kinds[1+i]
		for _, f := range contents[1+i] {
			if kind == initial && f.number == 3 || kind == reset && f.number == 2 || kind == 3 && f.number > 2 && f.number != 5 {
				found = found.bytes(f.number, f.bytes)
			}
		}
		if hex.EncodeToString(found) != fields {
			t.Errorf("message %d has the masks %x, not %s", i, found, fields)
		}
	}
}

func TestIdleByAutoresetMode(t *testing.T) {
	answer := given(3, nil)
	nan, all := float32(math.NaN()), []bool{true, true, true}
	seen, reward := [][]byte{Bytes(make([]float32, 6))}, []float64{0, 0, 0}
	address, _, _ := serve(t, [][]byte{pageWelcome, answer})
	config := point(address)
	config.Environments = 3
	c := opened(t, config)
	if _, err := c.InitIdle(seen, nil, all); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "OutOfStep") {
		t.Error(err)
	}
	if _, err := c.InitIdle(seen, nil, make([]bool, 3)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Step(Outcome{Reward: reward, Observation: seen, Idle: all}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "OutOfStep") {
		t.Error(err)
	}
	address, _, _ = serve(t, [][]byte{welcomed(part{}.integer(6, 1)), answer, answer})
	config.Addresses, config.Autoreset, config.OutOfStep = []string{address}, []Autoreset{Disabled, SameStep, NextStep}, true
	c = opened(t, config)
	if _, err := c.Init(seen, nil); err != nil {
		t.Fatal(err)
	}
	seen = [][]byte{Bytes([]float32{nan, nan, nan, nan, 0, nan})}
	for _, ended := range [][]bool{{true, false, false}, {false, false, true}} { // DISABLED, and NEXT_STEP with NaN
		if _, err := c.Step(Outcome{Reward: reward, Observation: seen, Idle: all, Truncated: ended}); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
	seen = [][]byte{Bytes([]float32{nan, nan, nan, nan, 0, 0})}
	o := Outcome{Reward: reward, Observation: seen, Idle: all, Truncated: []bool{false, true, true}}
	o.FinalObservation = [][]byte{Bytes([]float32{nan, nan, 0, nan, nan, nan})}
	if _, err := c.Step(o); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	o.FinalObservation = [][]byte{Bytes([]float32{nan, nan, 0, 0, nan, nan})} // of SAME_STEP
	_, err := c.Step(o)
	if err != nil || c.between[0] || !c.between[1] || !c.between[2] {
		t.Error(err, c.between)
	}
}

// Rows that are not chosen may hold anything. Without a chosen row, neither field is sent.
func TestChosenActions(t *testing.T) {
	script := [][]byte{welcomed(part{}.integer(6, 1).integer(7, 1))}
	for i := 0; i < 5; i++ {
		script = append(script, given(2, nil))
	}
	address, told, done := serve(t, append(script, frame(returns, part{}.doubles(1, []float64{0, 0}))))
	config := point(address)
	config.Environments, config.Autoreset, config.OutOfStep, config.ChosenActions = 2, []Autoreset{NextStep}, true, true
	c := opened(t, config)
	reward, seen := []float64{0, 0}, [][]byte{Bytes(make([]float32, 4))}
	first, second, both := []bool{true, false}, []bool{false, true}, []bool{true, true}
	own, wrong := [][]byte{Bytes([]int64{99, 2})}, [][]byte{Bytes([]int64{1, 99})}
	marked := "4a0200015217" + "0809120102" + "1a10" + hex.EncodeToString(own[0])
	fields := []string{}
	want := func(due error, sent string, err error) {
		t.Helper()
		if !errors.Is(err, due) {
			t.Fatal(err)
		}
		if due == nil {
			fields = append(fields, sent)
		}
	}
	step := func(due error, sent string, o Outcome) {
		t.Helper()
		o.Reward, o.Observation = reward, seen
		_, err := c.Step(o)
		want(due, sent, err)
	}
	if _, err := c.Init(seen, nil); err != nil {
		t.Fatal(err)
	}
	for _, action := range [][][]byte{nil, wrong, {{2}}, append(own, own...)} {
		step(ErrInvalid, "", Outcome{Chosen: second, Action: action})
	}
	step(ErrInvalid, "", Outcome{Chosen: []bool{true}, Action: own})
	step(ErrInvalid, "", Outcome{Chosen: both, Action: own})
	step(ErrInvalid, "", Outcome{Chosen: second, Action: own, Idle: second}) // its action is still in progress
	step(nil, marked, Outcome{Chosen: second, Action: own})
	step(nil, "", Outcome{Chosen: make([]bool, 2), Action: [][]byte{{2}}})
	step(nil, "2202000142020001"+marked, Outcome{Chosen: second, Action: own, Idle: second, Truncated: second})
	step(ErrInvalid, "", Outcome{Chosen: second, Action: own})               // its episode begins
	step(ErrInvalid, "", Outcome{Chosen: second, Action: own, Idle: second}) // it is away
	step(nil, "42020001", Outcome{Idle: second})
	_, err := c.Reset(Outcome{Reward: reward, Chosen: second, Action: own})
	want(ErrInvalid, "", err)
	_, err = c.Reset(Outcome{Reward: reward, Chosen: first, Action: own})
	want(ErrInvalid, "", err)
	_, err = c.Reset(Outcome{Reward: reward, Chosen: first, Action: wrong})
	want(nil, "2a0201003217"+"0809120102"+"1a10"+hex.EncodeToString(wrong[0]), err)
	<-done
	_, contents := messages(told)
	for i, due := range fields {
		var found part
		for _, f := range contents[2+i] {
			if f.number > 2 {
				found = found.bytes(f.number, f.bytes)
			}
		}
		if hex.EncodeToString(found) != due {
			t.Errorf("message %d has the fields %x, not %s", i, found, due)
		}
	}
}

func TestChosenActionsNeedTheFlag(t *testing.T) {
	address, _, _ := serve(t, [][]byte{pageWelcome, pageActions, pageActions})
	c := opened(t, point(address))
	seen := [][]byte{Bytes([]float32{0, 0})}
	if _, err := c.Init(seen, nil); err != nil {
		t.Fatal(err)
	}
	o := Outcome{Reward: []float64{1}, Observation: seen, Chosen: []bool{true}, Action: [][]byte{Bytes([]int64{1})}}
	if _, err := c.Step(o); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "ChosenActions") {
		t.Error(err)
	}
	o.Chosen[0] = false
	if _, err := c.Step(o); err != nil {
		t.Error(err)
	}
}

func TestChosenActionsRespectBounds(t *testing.T) {
	config := point("localhost:7001")
	config.Environments, config.Action = 2, Box(Float32, nil, []float64{-1}, []float64{1})
	c := opened(t, config)
	for action, due := range map[float32]error{1: nil, -1: nil, 1.5: ErrInvalid, float32(math.NaN()): ErrInvalid} {
		own := [][]byte{Bytes([]float32{float32(math.NaN()), action})}
		if err := c.fit("action", own, []bool{false, true}); !errors.Is(err, due) {
			t.Error(action, err)
		}
	}
}

// A message with an observation of 8 bytes and an action of 8 bytes needs more than 15 bytes.
func TestFrameLimitCountsChosenActions(t *testing.T) {
	small, _ := parse(welcomed(part{}.bytes(5, part{}.integer(1, 15)).integer(7, 1))[6:])
	config := point("localhost:7001")
	config.ChosenActions = true
	if code := opened(t, config).readWelcome(small); code != LimitExceeded {
		t.Error(code)
	}
	small, _ = parse(welcomed(part{}.bytes(5, part{}.integer(1, 15)))[6:])
	if code := opened(t, point("localhost:7001")).readWelcome(small); code != 0 {
		t.Error(code)
	}
}

// After a reconnect, episodes are partial until the parameters of the connection are read.
func TestParameters(t *testing.T) {
	named := func(values ...float64) []byte {
		return welcomed(part{}.integer(8, 1).text(9, "size").text(9, "gravity").doubles(10, values))
	}
	ended, answer := frame(returns, part{}.doubles(1, []float64{0, 0})), given(2, nil)
	changed := given(2, part{}.bytes(2, []byte{1}).doubles(3, []float64{5, 6}))
	address, told, done := serve(t, [][]byte{named(1, 2, 3, 4), answer, changed},
		[][]byte{named(7, 8, 9, 10), answer, ended, answer})
	config := point(address)
	config.Environments, config.EnvironmentParameters, config.Retry = 2, true, time.Minute
	config.OnRetry = func(error, time.Duration) {}
	c := opened(t, config)
	o := Outcome{Reward: []float64{0, 0}, Observation: [][]byte{Bytes(make([]float32, 4))}}
	start := func() {
		t.Helper()
		if _, err := c.Init(o.Observation, nil); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(size, gravity []float64) {
		t.Helper()
		all, err := c.Parameters()
		if due := map[string][]float64{"size": size, "gravity": gravity}; err != nil || !reflect.DeepEqual(all, due) {
			t.Error(all, err)
		}
	}
	expect([]float64{1, 3}, []float64{2, 4})
	start()
	if _, err := c.Step(o); err != nil {
		t.Fatal(err)
	}
	expect([]float64{1, 5}, []float64{2, 6})
	if _, err := c.Step(o); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	start()
	expect([]float64{7, 9}, []float64{8, 10})
	if _, err := c.Reset(o); err != nil {
		t.Fatal(err)
	}
	start()
	<-done
	if !reflect.DeepEqual(c.ParameterNames, []string{"size", "gravity"}) {
		t.Error(c.ParameterNames)
	}
	partial := []int{}
	kinds, contents := messages(told)
	for i, kind := range kinds {
		if kind == initial {
			partial = append(partial, bytes.Count(bytes.Join(contents[i].all(2), nil), []byte{1}))
		}
	}
	if !reflect.DeepEqual(partial, []int{0, 2, 0}) {
		t.Error(partial)
	}
}

func TestNoParameters(t *testing.T) {
	c := opened(t, point("localhost:7001"))
	if _, err := c.Parameters(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "EnvironmentParameters") {
		t.Error(err)
	}
	address, told, done := serve(t, [][]byte{welcomed(part{}.integer(8, 1)), pageActions})
	config := point(address)
	config.EnvironmentParameters = true
	c = opened(t, config)
	_, err := c.Init([][]byte{Bytes([]float32{0, 0})}, nil)
	<-done
	if _, contents := messages(told); err != nil || len(contents) != 2 || len(contents[1].all(2)) != 0 {
		t.Error(err, contents)
	}
	if all, err := c.Parameters(); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
}

func TestParametersAreChecked(t *testing.T) {
	config := point("localhost:7001")
	config.Environments = 2
	plain := opened(t, config)
	config.EnvironmentParameters = true
	c := opened(t, config)
	named := func(names ...string) (p part) {
		for _, name := range names {
			p = p.bytes(9, []byte(name))
		}
		return p
	}
	many := make([]string, 65)
	for i := range many {
		many[i] = strings.Repeat("x", 1+i)
	}
	long := strings.Repeat("x", 257)
	for _, one := range []struct {
		granted uint64
		fields  part
		code    Code
	}{
		{1, named(many[:64]...).doubles(10, make([]float64, 128)), 0},
		{1, named(many...).doubles(10, make([]float64, 130)), LimitExceeded},
		{1, named(long[1:], "é (mm)").doubles(10, []float64{1e30, -1e30, 0, 0}), 0},
		{1, named(long).doubles(10, []float64{0, 0}), LimitExceeded},
		{1, named("a\n").doubles(10, []float64{0, 0}), InvalidValue},
		{1, named("").doubles(10, []float64{0, 0}), InvalidValue},
		{1, named("a", "a").doubles(10, make([]float64, 4)), InvalidValue},
		{1, named("\xff").doubles(10, []float64{0, 0}), Malformed},
		{1, named("a"), InvalidValue},
		{1, named("a").doubles(10, []float64{0}), InvalidValue},
		{1, named("a").doubles(10, []float64{0, 0, 0}), InvalidValue},
		{1, named("a").doubles(10, []float64{0, math.NaN()}), InvalidValue},
		{1, named("a").doubles(10, []float64{0, math.Inf(1)}), InvalidValue},
		{1, named("a").doubles(10, []float64{0, 1e31}), InvalidValue},
		{1, part{}.doubles(10, []float64{0, 0}), InvalidValue},
		{0, named("a").doubles(10, []float64{0, 0}), InvalidValue},
		{0, nil, UnsupportedSpace},
		{1, named("a", "b").doubles(10, make([]float64, 4)), 0}, // for the answers below
	} {
		m, _ := parse(pageWelcome[6:], part{}.integer(8, one.granted), one.fields)
		if code := c.readWelcome(m); code != one.code {
			t.Errorf("%x: %d", one.fields, code)
		}
	}
	for _, one := range []struct {
		of     []byte
		values []float64
		code   Code
	}{
		{nil, nil, 0},
		{[]byte{1}, []float64{1e30, -1e30}, 0},
		{[]byte{0, 1}, []float64{1, 2, 3, 4}, 0},
		{[]byte{1, 0}, []float64{1, 2, 3, 4}, InvalidValue},
		{[]byte{1, 1}, []float64{1, 2, 3, 4}, InvalidValue},
		{[]byte{0, 1, 1}, make([]float64, 6), InvalidValue},
		{[]byte{2}, []float64{1, 2}, InvalidValue},
		{[]byte{128}, []float64{1, 2}, Malformed},
		{[]byte{0}, nil, InvalidValue},
		{[]byte{0}, []float64{1}, InvalidValue},
		{nil, []float64{1, 2}, InvalidValue},
		{[]byte{0}, []float64{1, math.NaN()}, InvalidValue},
		{[]byte{0}, []float64{math.Inf(-1), 1}, InvalidValue},
		{[]byte{0}, []float64{1e31, 1}, InvalidValue},
	} {
		m, _ := parse(part{}.bytes(2, one.of).doubles(3, one.values))
		if code := c.readParameters(m); code != one.code {
			t.Errorf("%+v: %d", one, code)
		}
		if code := plain.readParameters(m); (code == 0) != (one.of == nil && one.values == nil) {
			t.Errorf("%+v without the flag: %d", one, code)
		}
	}
}

// A flag must be in the hello and in the welcome, or in neither.
func TestFlagsOfWelcome(t *testing.T) {
	outOfStep := func(c *Config) { c.OutOfStep = true }
	chosen := func(c *Config) { c.ChosenActions = true }
	parameters := func(c *Config) { c.EnvironmentParameters = true }
	nothing := func(*Config) {}
	mistake, noted := "the server's mistake", "outside the agreed range"
	for _, one := range []struct {
		ask           func(*Config)
		asked         uint64
		granted       uint64
		code          Code
		sentence, bye string
	}{
		{nothing, 0, 0, 0, "", ""},
		{outOfStep, 15, 6, 0, "", ""},
		{chosen, 16, 7, 0, "", ""},
		{parameters, 17, 8, 0, "", ""},
		{outOfStep, 15, 0, UnsupportedSpace, "does not support environments out of step", "lacks out_of_step"},
		{chosen, 16, 0, UnsupportedSpace, "does not support actions of the client", "lacks chosen_actions"},
		{parameters, 17, 0, UnsupportedSpace, "does not support parameters of environments", "lacks environment_parameters"},
		{nothing, 0, 6, InvalidValue, mistake, noted},
		{outOfStep, 15, 7, InvalidValue, mistake, noted},
		{chosen, 16, 8, InvalidValue, mistake, noted},
	} {
		answer := pageWelcome
		if one.granted != 0 {
			answer = welcomed(part{}.integer(one.granted, 1))
		}
		address, told, done := serve(t, [][]byte{answer, nil})
		config := point(address)
		config.Retry = time.Minute
		one.ask(&config)
		c := opened(t, config)
		err := c.Connect()
		c.Close()
		<-done
		_, contents := messages(told)
		for field := uint64(15); field < 18; field++ {
			if (contents[0].integer(field) == 1) != (field == one.asked) {
				t.Errorf("%+v: %+v", one, contents[0])
			}
		}
		if one.code == 0 && err == nil {
			continue
		}
		var e *Error
		if !errors.Is(err, ErrFailed) || !errors.As(err, &e) || e.Code != one.code || !strings.Contains(e.Sentence, one.sentence) {
			t.Errorf("%+v: %v", one, err)
		}
		if !bytes.Contains(told.Bytes(), []byte(one.bye)) || c.conn != nil {
			t.Errorf("%x", told.Bytes())
		}
	}
}

// The server's last message before a failed write is used; pings are not answered.
func TestLastMessageOfServerIsReported(t *testing.T) {
	pinged := frame(serverPing, part{}.integer(1, 7))
	refused := frame(failure, part{}.integer(1, 14).text(2, "the agent failed"))
	for _, one := range []struct {
		said []byte
		due  error
		code Code
	}{
		{append(append([]byte{}, pinged...), frame(finished, part{}.integer(2, 123456))...), ErrFinished, 0},
		{append(append([]byte{}, pageActions...), refused...), ErrFailed, 14},
		{pinged, ErrInterrupted, 0},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, _ := listener.Accept()
			for _, answer := range [][]byte{pageWelcome, pageActions} {
				conn.Read(make([]byte, 4096))
				conn.Write(answer)
			}
			accepted <- conn
		}()
		c := opened(t, point(listener.Addr().String()))
		seen := [][]byte{Bytes([]float32{0, 0})}
		if _, err := c.Init(seen, nil); err != nil {
			t.Fatal(err)
		}
		conn := <-accepted
		conn.Write(one.said)
		conn.(*net.TCPConn).SetLinger(0) // a reset: the next write fails
		conn.Close()
		_, err = c.Step(Outcome{Reward: []float64{1}, Observation: seen})
		var e *Error
		if !errors.Is(err, one.due) || !errors.As(err, &e) || e.Code != one.code {
			t.Errorf("%x: %v", one.said, err)
		}
		if c.conn != nil {
			t.Error("it still has a connection")
		}
		listener.Close()
	}
}

func TestSilenceTimeoutHasMinimum(t *testing.T) {
	c := opened(t, point("localhost:7001"))
	for heartbeat, due := range map[float64]time.Duration{0.01: 5 * time.Second, 10: 30 * time.Second} {
		limits := part{}.integer(1, 1<<20).varint(2<<3 | 1).double(600).varint(3<<3 | 1).double(heartbeat)
		m, _ := parse(part{}.integer(1, 1).bytes(5, limits))
		if code := c.readWelcome(m); code != 0 || c.silence != due {
			t.Error(code, c.silence)
		}
	}
}

// Changed answers are accepted or refused; nothing else happens.
func TestChangedAnswersAreAcceptedOrRefused(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	config := point("127.0.0.1:1")
	config.OutOfStep, config.ChosenActions, config.EnvironmentParameters = true, true, true
	c := opened(t, config)
	ours, theirs := net.Pipe()
	defer ours.Close()
	go io.Copy(io.Discard, theirs)
	ends := map[string]int{}
	first := welcomed(part{}.integer(6, 1).integer(7, 1).integer(8, 1).text(9, "size").doubles(10, []float64{1}))
	frames := [][]byte{first[4:], given(1, part{}.bytes(2, []byte{0}).doubles(3, []float64{2}))[4:], part{}.bytes(3, part{}.doubles(1, []float64{1}))}
	for i := 0; i < 100000; i++ {
		c.conn, c.limit, c.silence, c.broken = ours, 65536, time.Minute, i%16 == 0
		kind := random.Intn(3)
		data := append([]byte{}, frames[kind]...)
		for n := random.Intn(4); n > 0 && len(data) > 0; n-- {
			at := random.Intn(len(data))
			switch random.Intn(3) {
			case 0:
				data[at] ^= 1 << random.Intn(8)
			case 1:
				data = data[:at]
			case 2:
				data = append(data[:at:at], append([]byte{data[at]}, data[at:]...)...)
			}
		}
		came, err := func() (bool, error) {
			defer func() {
				if c.conn == nil {
					ours, theirs = net.Pipe()
					go io.Copy(io.Discard, theirs)
				}
			}()
			return c.look(data, uint64(kind+1))
		}()
		switch {
		case came:
			ends["understood"]++
		case err != nil:
			ends["refused"]++
		}
	}
	if ends["understood"] < 1000 || ends["refused"] < 1000 {
		t.Error(ends)
	}
}
