package rlx

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"math/rand"
	"net"
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
	pageWelcome      = unhex("0000002c0a2a08011a0273312204646133632a1c08808040110000000000c08240190000000000002440208001288002")
	outOfStepWelcome = append(append(unhex("0000002e0a2c"), pageWelcome[6:]...), 0x30, 1)
	pageActions      = unhex("0000001312110a0f08091201011a080200000000000000")
)

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
	answer := frame(actions, part{}.leaves(1, []leaf{{dtype: Int64}}, [][]byte{make([]byte, 16)}, 2))
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
	answer := frame(actions, part{}.leaves(1, []leaf{{dtype: Int64}}, [][]byte{make([]byte, 16)}, 2))
	script := [][]byte{outOfStepWelcome}
	for i := 0; i < 7; i++ {
		script = append(script, answer)
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
	payloads := [][]byte{}
	for data := told.Bytes(); len(data) > 4; {
		size := 4 + int(data[2])<<8 + int(data[3])
		payloads, data = append(payloads, data[4:size]), data[size:]
	}
	if hello, _ := parse(payloads[0]); !bytes.HasSuffix(hello[0].bytes, unhex("7801")) {
		t.Errorf("%x", payloads[0])
	}
	for i, fields := range masks {
		var found part
		m, _ := parse(payloads[1+i])
		kind := m[0].number
		m, _ = parse(m[0].bytes)
		for _, f := range m {
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
	answer := frame(actions, part{}.leaves(1, []leaf{{dtype: Int64}}, [][]byte{make([]byte, 24)}, 3))
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
	address, _, _ = serve(t, [][]byte{outOfStepWelcome, answer, answer})
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

// The flag must be in the hello and in the welcome, or in neither.
func TestFlagOfWelcome(t *testing.T) {
	for _, one := range []struct {
		asked         bool
		welcome       []byte
		code          Code
		sentence, bye string
	}{
		{false, pageWelcome, 0, "", ""},
		{true, outOfStepWelcome, 0, "", ""},
		{true, pageWelcome, UnsupportedSpace, "does not support environments out of step", "lacks out_of_step"},
		{false, outOfStepWelcome, InvalidValue, "the server's mistake", "outside the agreed range"},
	} {
		address, told, done := serve(t, [][]byte{one.welcome, nil})
		config := point(address)
		config.OutOfStep, config.Retry = one.asked, time.Minute
		c := opened(t, config)
		err := c.Connect()
		c.Close()
		<-done
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
	c := opened(t, point("127.0.0.1:1"))
	ours, theirs := net.Pipe()
	defer ours.Close()
	go io.Copy(io.Discard, theirs)
	ends := map[string]int{}
	frames := [][]byte{pageWelcome[4:], pageActions[4:], part{}.bytes(3, part{}.doubles(1, []float64{1}))}
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
