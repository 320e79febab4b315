package rlx

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"math/rand"
	"net"
	"testing"
	"time"
)

// A server that answers each question with the next frame of its script; after the last one it hangs up.
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
				for asked := false; !asked; { // metrics, pongs and byes are not answered
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

func TestBytesOfThePage(t *testing.T) {
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

func TestRefusedBeforeItIsSent(t *testing.T) {
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
	for _, space := range []Space{{}, Box(13, nil, nil, nil), Box(Float32, []uint32{0}, nil, nil), Box(Float32, []uint32{65536, 65536}, nil, nil)} {
		config := point(address)
		config.Action = space
		if _, err := New(config); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", space, err)
		}
	}
}

func TestConnectsAgain(t *testing.T) {
	full := frame(failure, part{}.integer(1, 11).text(2, "full").integer(3, 1).varint(4<<3|1).double(0.75))
	end := frame(finished, part{}.integer(2, 123456))
	address, told, done := serve(t, [][]byte{pageWelcome, pageActions}, [][]byte{full}, [][]byte{pageWelcome, pageActions, end})
	config := point("127.0.0.1:1")
	config.Addresses, config.Retry = append([]string{address}, address), time.Minute
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
	if took := time.Since(began); took < time.Second { // 0.25 s at least, then the 0.75 s of the error
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
	if bytes.Count(told.Bytes(), unhex("6a027331")) != 2 { // the session id of the two hellos that came back
		t.Errorf("%x", told.Bytes())
	}
}

// What was right before it was changed is understood or refused; nothing else happens.
func TestMutatedAnswers(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	c := opened(t, point("127.0.0.1:1"))
	ours, theirs := net.Pipe()
	defer ours.Close()
	go io.Copy(io.Discard, theirs)
	ends := map[string]int{}
	frames := [][]byte{pageWelcome[4:], pageActions[4:], part{}.bytes(3, part{}.doubles(1, []float64{1}))}
	for i := 0; i < 100000; i++ {
		c.conn, c.limit, c.silence = ours, 65536, time.Minute
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
