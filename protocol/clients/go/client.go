// Package rlx is a client of RLX, version 1 (protocol/RLX.md). It connects environments in Go to the agents of a RELAAX
// server. It encodes Protobuf itself and needs only the standard library.
package rlx

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const version = "1.0.0"

const handshakeBytes = 65536

const speaksGRPC = "this port speaks gRPC, like the ports of parameter and replay servers: " +
	"connect to an RLX server (relaax-rlx-server.bind, port 7001 by default)"

const lacksCapability = "%s: the server or its algorithm does not support %s: " +
	"use another algorithm, or do not set %s"

// settings is the start of a gRPC server's stream, after 3 bytes. No RLX payload begins with a zero byte.
var settings = []byte{4, 0, 0, 0, 0, 0}

// A Code is an error code of RLX.md, section 9.
type Code uint64

// The codes of errors that a client detects.
const (
	Malformed          Code = 1
	FrameTooLarge      Code = 2
	UnexpectedMessage  Code = 3
	UnsupportedVersion Code = 4
	UnsupportedSpace   Code = 6 // also a server without a capability of the Config
	InvalidValue       Code = 8
	LimitExceeded      Code = 9
)

// The meanings of an *Error, for errors.Is.
var (
	// ErrInterrupted: the connection and its episodes are lost. Reset the environments and call Init, which reconnects.
	ErrInterrupted = errors.New("interrupted")
	// ErrFinished: training has finished.
	ErrFinished = errors.New("finished")
	// ErrFailed: a retry is useless, or the retries took too long.
	ErrFailed = errors.New("failed")
	// ErrInvalid: an argument is invalid. Nothing was sent, and the connection remains open.
	ErrInvalid = errors.New("invalid")
)

// An Error is the error of a call. It unwraps to its meaning.
type Error struct {
	Code       Code // of section 9, or 0
	Sentence   string
	GlobalStep uint64 // with ErrFinished
	meaning    error
	after      time.Duration
}

func (e *Error) Error() string { return e.Sentence }

// Unwrap returns ErrInterrupted, ErrFinished, ErrFailed or ErrInvalid.
func (e *Error) Unwrap() error { return e.meaning }

func invalid(format string, values ...any) *Error {
	return &Error{Code: InvalidValue, Sentence: fmt.Sprintf(format, values...), meaning: ErrInvalid}
}

// An Autoreset is the autoreset mode of an environment: how its next episode begins.
type Autoreset int

// The autoreset modes.
const (
	Disabled Autoreset = iota + 1
	SameStep
	NextStep
)

// A Mode says whether the agent learns.
type Mode int

// The modes: learn from this client, or only act.
const (
	Train Mode = iota + 1
	Exploit
)

// A Config is the configuration of a client. The zero value of a field is its default.
type Config struct {
	Addresses             []string // HOST:PORT; after each failure the client tries the next one
	TLS                   *tls.Config
	Token                 string
	Environment           string
	Host                  string
	SessionID             string
	Observation           Space
	Action                Space
	Environments          int // N
	FrameSkip             int
	Autoreset             []Autoreset // one mode for all environments, or N
	Mode                  Mode
	ReportsEpisodes       bool
	OutOfStep             bool                                   // for InitIdle and Outcome.Idle; the server's algorithm must support it
	ChosenActions         bool                                   // for Outcome.Chosen; the server's algorithm must support it
	EnvironmentParameters bool                                   // for Parameters; the server must support it
	Retry                 time.Duration                          // how long to retry after a failure; 0: five minutes; negative: do not retry
	OnRetry               func(reason error, wait time.Duration) // called before each wait; nil: print a line to stderr
}

// An Episode is a whole episode, as the client counts it.
type Episode struct {
	Environment int
	Return      float64
	Length      int
}

// An Outcome is the outcome of the last actions. Leaves are little-endian bytes with a leading axis N: see Bytes.
type Outcome struct {
	Reward           []float64 // N
	Observation      [][]byte  // not used by Reset
	Terminated       []bool    // N or nil; not used by Reset
	Truncated        []bool
	FinalObservation [][]byte // required if an episode was truncated, with SameStep (other rows are ignored) and in Reset
	Episodes         []Episode
	Idle             []bool   // with OutOfStep: no action is wanted; not used by Reset
	Chosen           []bool   // with ChosenActions: the environment took the client's action instead of the agent's
	Action           [][]byte // required if Chosen marks an environment; other rows are ignored
}

// A capability is an option that the server or its algorithm may not support.
type capability struct {
	needed                 bool
	field, option, meaning string
}

// capabilities lists them in the order of their fields: from 15 in a hello, from 6 in a welcome.
func (g *Config) capabilities() [3]capability {
	return [3]capability{
		{g.OutOfStep, "out_of_step", "OutOfStep", "environments out of step"},
		{g.ChosenActions, "chosen_actions", "ChosenActions", "actions of the client"},
		{g.EnvironmentParameters, "environment_parameters", "EnvironmentParameters", "parameters of environments"},
	}
}

// compare returns a capability that is needed and that the welcome lacks, and whether it has one that is not needed.
func (g *Config) compare(welcome message) (lacks capability, excess bool) {
	for i, one := range g.capabilities() {
		granted := welcome.integer(uint64(6+i)) != 0
		if one.needed && !granted {
			lacks = one
		}
		excess = excess || granted && !one.needed
	}
	return lacks, excess
}

type state int

const (
	closed state = iota
	idle
	playing
)

// A Client connects N environments to their agent. Use it from one goroutine.
type Client struct {
	Session, Algorithm string   // of the latest welcome
	ParameterNames     []string // of the latest welcome, in the server's order

	config              Config
	observation, action []leaf
	conn                net.Conn
	state               state
	answered, broken    bool // broken: writes are no longer possible
	lost, end           *Error
	address, failures   int
	since               time.Time
	limit               int
	silence             time.Duration
	nameBytes, names    int
	used                map[string]bool
	buffer, scalars     []byte // buffer[from:to] is not processed yet
	from, to            int
	actions             [][]byte
	returns             []float64
	parameters          []float64 // of the next episodes: one number for each name, for each environment
	informed            bool      // whether the caller has the parameters of this connection
	between, ended, cut []bool
	live, same          []bool // the rows of an observation, and of a final one, that are not void
}

// New returns a client. It does not connect yet.
func New(config Config) (*Client, error) {
	c := &Client{config: config, Session: config.SessionID}
	g := &c.config
	if g.Environments == 0 {
		g.Environments = 1
	}
	if g.Mode == 0 {
		g.Mode = Train
	}
	if g.Retry == 0 {
		g.Retry = 5 * time.Minute
	}
	if g.OnRetry == nil {
		g.OnRetry = func(reason error, wait time.Duration) {
			fmt.Fprintf(os.Stderr, "RLX: %v; trying again in %.1f s\n", reason, wait.Seconds())
		}
	}
	if len(g.Autoreset) == 0 {
		g.Autoreset = []Autoreset{Disabled}
	}
	n := g.Environments
	if len(g.Addresses) == 0 {
		return nil, invalid("the address is missing")
	}
	g.Addresses = append([]string{}, g.Addresses...)
	for i, address := range g.Addresses {
		g.Addresses[i] = strings.TrimSpace(address)
		host, port, err := net.SplitHostPort(g.Addresses[i])
		if number, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || host == "" || number == 0 {
			return nil, invalid("the address %q is not HOST:PORT, as in localhost:7001 or [::1]:7001", address)
		}
	}
	for _, habit := range g.Autoreset {
		if habit < Disabled || habit > NextStep {
			return nil, invalid("autoreset %d must be Disabled, SameStep or NextStep", habit)
		}
	}
	if g.Mode != Train && g.Mode != Exploit || g.FrameSkip < 0 {
		return nil, invalid("mode %d, frame skip %d: use Train or Exploit, and at least 0", g.Mode, g.FrameSkip)
	}
	if n < 1 || n > 65536 || (len(g.Autoreset) != 1 && len(g.Autoreset) != n) {
		return nil, invalid("%d environments, %d autoreset modes: use 1 to 65536, and one mode for all or for each", n, len(g.Autoreset))
	}
	var err error
	if c.observation, err = g.Observation.leaves(); err != nil {
		return nil, invalid("observation: %v", err)
	}
	if c.action, err = g.Action.leaves(); err != nil {
		return nil, invalid("action: %v", err)
	}
	c.between, c.ended, c.cut = make([]bool, n), make([]bool, n), make([]bool, n)
	c.live, c.same = make([]bool, n), make([]bool, n)
	c.buffer = make([]byte, 65536)
	return c, nil
}

func (c *Client) habit(i int) Autoreset {
	if len(c.config.Autoreset) == 1 {
		return c.config.Autoreset[0]
	}
	return c.config.Autoreset[i]
}

// where returns the current address.
func (c *Client) where() string { return c.config.Addresses[c.address%len(c.config.Addresses)] }

// hangUp closes the connection. With farewell it closes in order, and drops incoming data for a moment.
func (c *Client) hangUp(farewell bool) {
	if c.conn != nil {
		if half, ok := c.conn.(interface{ CloseWrite() error }); ok && farewell && half.CloseWrite() == nil {
			c.conn.SetReadDeadline(time.Now().Add(time.Second))
			io.Copy(io.Discard, c.conn)
		}
		c.conn.Close()
	}
	c.conn, c.broken, c.state, c.from, c.to, c.scalars = nil, false, closed, 0, 0, nil
}

func (c *Client) interrupted(format string, values ...any) *Error {
	c.hangUp(false)
	c.lost = &Error{Sentence: fmt.Sprintf(format, values...), meaning: ErrInterrupted}
	return c.lost
}

func (c *Client) sayBye(reason string) {
	c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	c.conn.Write(frame(bye, part{}.text(1, reason)))
}

// mistake disconnects after a mistake of the server. The client reconnects only if an init was answered before.
func (c *Client) mistake(code Code, what string) *Error {
	if c.broken {
		return &Error{meaning: ErrInterrupted}
	}
	c.sayBye(what)
	lost := c.interrupted("the server's mistake: %s", what)
	lost.Code = code
	if !c.answered {
		lost.Sentence, lost.meaning = fmt.Sprintf("%s: %s: is it an RLX server?", c.where(), lost.Sentence), ErrFailed
	}
	return lost
}

// send writes the pending scalars and a message in one call.
func (c *Client) send(kind uint64, content part) error {
	data := frame(kind, content)
	if len(data)-4 > c.limit {
		return &Error{LimitExceeded, fmt.Sprintf("a message of %d bytes; the server accepts at most %d", len(data)-4, c.limit), 0, ErrInvalid, 0}
	}
	if kind != hello && len(c.scalars) > 0 {
		data, c.scalars = append(c.scalars, data...), nil
	}
	c.conn.SetWriteDeadline(time.Now().Add(c.silence))
	if _, err := c.conn.Write(data); err != nil {
		return c.lastWords(err)
	}
	return nil
}

// lastWords is for a failed write: the server's last message may still be readable, and has the reason.
func (c *Client) lastWords(failed error) error {
	c.broken = true
	for until := time.Now().Add(time.Second); ; {
		err := c.hear(0)
		if c.conn == nil {
			return err
		}
		if err != nil || c.read(until) != nil {
			return c.interrupted("the connection is lost: %v", failed)
		}
	}
}

// read reads bytes into the buffer.
func (c *Client) read(until time.Time) error {
	c.from, c.to = 0, copy(c.buffer, c.buffer[c.from:c.to])
	if c.to == len(c.buffer) { // it grows with the data received, not with the announced length
		c.buffer = append(c.buffer, make([]byte, len(c.buffer))...)
	}
	c.conn.SetReadDeadline(until)
	n, err := c.conn.Read(c.buffer[c.to:])
	c.to += n
	if n > 0 {
		return nil
	}
	return err
}

// next returns the payload of the next frame, nil if it has not arrived. Its length is checked before its body is read.
func (c *Client) next() ([]byte, *Error) {
	if c.to-c.from < 4 {
		return nil, nil
	}
	if !c.answered && c.to-c.from >= 9 && bytes.Equal(c.buffer[c.from+3:c.from+9], settings) {
		c.hangUp(false)
		return nil, &Error{Code: Malformed, Sentence: c.where() + ": " + speaksGRPC, meaning: ErrFailed}
	}
	size := binary.BigEndian.Uint32(c.buffer[c.from:])
	if size == 0 {
		return nil, c.mistake(Malformed, "a frame of length 0")
	}
	if uint64(size) > uint64(c.limit) {
		return nil, c.mistake(FrameTooLarge, fmt.Sprintf("a frame of %d bytes; the limit is %d", size, c.limit))
	}
	if c.to-c.from < 4+int(size) {
		return nil, nil
	}
	c.from += 4 + int(size)
	return c.buffer[c.from-int(size) : c.from], nil
}

// hear reads and processes frames until the expected answer arrives. due 0: it does not read.
func (c *Client) hear(due uint64) error {
	for {
		for {
			payload, wrong := c.next()
			if wrong != nil {
				return wrong
			}
			if payload == nil {
				break
			}
			if came, err := c.look(payload, due); err != nil || came {
				return err
			}
		}
		if due == 0 {
			return nil
		}
		if err := c.read(time.Now().Add(c.silence)); err != nil {
			if due != welcome {
				return c.interrupted("the connection is lost: %v", err)
			}
			with := "without"
			if c.config.TLS != nil {
				with = "with"
			}
			return c.interrupted("%s: no welcome: %v: is it an RLX server %s TLS?", c.where(), err, with)
		}
	}
}

// look processes one frame. It returns whether the frame is the expected answer.
func (c *Client) look(payload []byte, due uint64) (bool, error) {
	frame, ok := parse(payload)
	var kind uint64
	var content message
	for _, f := range frame {
		if f.number > 8 || f.kind != 2 {
			continue
		}
		if kind != 0 {
			return false, c.mistake(Malformed, "two messages in one frame")
		}
		kind = f.number
		var whole bool
		content, whole = parse(f.bytes)
		ok = ok && whole
	}
	if !ok {
		return false, c.mistake(Malformed, "a frame that is not valid Protobuf")
	}
	n, code := c.config.Environments, Code(0)
	switch {
	case kind == failure || kind == finished || kind == serverGoodbye:
		return false, c.farewell(kind, content)
	case c.broken: // other messages no longer matter
		return false, nil
	case kind == serverPing:
		return false, c.send(pong, part{}.integer(1, content.integer(1)&math.MaxUint32))
	case kind == serverPong:
	case kind == 0 || kind != due:
		return false, c.mistake(UnexpectedMessage, fmt.Sprintf("message %d is not allowed now", kind))
	case due == welcome:
		code = c.readWelcome(content)
	case due == actions:
		if c.actions, code = readActions(content, c.action, n); code == 0 {
			code = c.readParameters(content)
		}
	case due == returns:
		c.returns, code = content.doubles(1, n)
	}
	if code == UnsupportedSpace {
		lacks, _ := c.config.compare(content)
		c.sayBye("the welcome lacks " + lacks.field)
		sentence := fmt.Sprintf(lacksCapability, c.where(), lacks.meaning, lacks.option)
		return false, &Error{Code: code, Sentence: sentence, meaning: ErrFailed}
	}
	if code != 0 {
		return false, c.mistake(code, "an answer with a value outside the agreed range")
	}
	return kind == due, nil
}

var sessionID = regexp.MustCompile(`^[A-Za-z0-9_-]{0,128}$`)

func (c *Client) readWelcome(m message) Code {
	limits, ok := parse(m.all(5)...)
	m.text(2, &ok)
	session, algorithm := m.text(3, &ok), m.text(4, &ok)
	most, idle, heartbeat := limits.integer(1)&math.MaxUint32, limits.double(2), limits.double(3)
	twice, n := 1, c.config.Environments
	for _, habit := range c.config.Autoreset {
		if habit == SameStep {
			twice = 2
		}
	}
	outcome, action := n*twice*size(c.observation), n*size(c.action)
	if c.config.ChosenActions {
		outcome += action
	}
	lacks, excess := c.config.compare(m)
	names, code := readNames(m)
	var parameters []float64
	if code == 0 {
		parameters, code = m.doubles(10, n*len(names))
	}
	switch {
	case !ok:
		return Malformed
	case m.integer(1) != 1:
		return UnsupportedVersion
	case !(idle > 0 && heartbeat > 0) || math.IsInf(idle+heartbeat, 0) || !sessionID.MatchString(session):
		return InvalidValue
	case excess || len(names) > 0 && m.integer(8) == 0:
		return InvalidValue
	case code != 0:
		return code
	case uint64(outcome) > most || uint64(action) > most:
		return LimitExceeded
	case lacks.needed:
		return UnsupportedSpace
	}
	c.Session, c.Algorithm, c.limit, c.used = session, algorithm, int(most), map[string]bool{}
	c.ParameterNames, c.parameters, c.informed = names, parameters, false
	c.nameBytes, c.names = int(limits.integer(4)), int(limits.integer(5))
	c.silence = time.Duration(math.Max(5, 3*math.Min(heartbeat, 1e6)) * float64(time.Second))
	return 0
}

// readParameters replaces the parameters of the environments that the answer names.
func (c *Client) readParameters(m message) Code {
	n, p := c.config.Environments, len(c.ParameterNames)
	of, code := m.integers(2, n)
	if code != 0 {
		return code
	}
	for k, i := range of {
		if !c.config.EnvironmentParameters || i >= uint64(n) || k > 0 && i <= of[k-1] {
			return InvalidValue
		}
	}
	values, code := m.doubles(3, p*len(of))
	if code != 0 {
		return code
	}
	for k, i := range of {
		copy(c.parameters[int(i)*p:], values[k*p:(k+1)*p])
	}
	return 0
}

// farewell processes the server's last message: an error, the end of training, or a bye.
func (c *Client) farewell(kind uint64, m message) error {
	ok, e := true, &Error{meaning: ErrFailed}
	switch kind {
	case finished:
		e.Sentence, e.GlobalStep, e.meaning = "training has finished: "+m.text(1, &ok), m.integer(2), ErrFinished
		c.end = e
	case serverGoodbye:
		e.Sentence, e.meaning = "the server sent bye: "+m.text(1, &ok), ErrInterrupted
	default:
		e.Code, e.Sentence = Code(m.integer(1)), m.text(2, &ok)
		if m.integer(3) != 0 {
			e.meaning = ErrInterrupted
		}
		after := m.double(4)
		if !(after >= 0) || math.IsInf(after, 0) {
			return c.mistake(InvalidValue, fmt.Sprintf("an error has retry_after_seconds %v", after))
		}
		e.after = time.Duration(math.Min(after, 1e9) * float64(time.Second))
	}
	if !ok {
		return c.mistake(Malformed, "a text that is not valid UTF-8")
	}
	c.hangUp(false)
	c.lost = e
	return e
}

// greeting returns the hello. The bounds of observations are left out if it would be too long (section 6).
func (c *Client) greeting(bounds bool) part {
	g := &c.config
	h := part{}.integer(1, 1).text(2, "relaax-go").text(3, version).text(4, g.Token).text(5, g.Environment).text(6, g.Host)
	h = h.integer(7, uint64(g.FrameSkip)).space(8, g.Observation, bounds).space(9, g.Action, true)
	h = h.integer(10, uint64(g.Environments)).bytes(11, packed(g.Autoreset)).integer(12, uint64(g.Mode)).text(13, c.Session)
	if g.ReportsEpisodes {
		h = h.integer(14, 1)
	}
	for i, one := range g.capabilities() {
		if one.needed {
			h = h.integer(uint64(15+i), 1)
		}
	}
	if bounds && len(h) > handshakeBytes-4 {
		return c.greeting(false)
	}
	return h
}

// try connects to the current address once.
func (c *Client) try() error {
	address := c.where()
	c.state, c.limit, c.silence, c.answered, c.from, c.to = closed, handshakeBytes, time.Minute, false, 0, 0
	h := c.greeting(true)
	if len(h) > handshakeBytes-4 {
		sentence := fmt.Sprintf("a hello of %d bytes; the limit is 64 KiB: use one bound for all elements", len(h))
		return &Error{Code: LimitExceeded, Sentence: sentence, meaning: ErrInvalid}
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	conn, err := dialer.Dial("tcp", address) // with TCP_NODELAY, which Go sets
	if err != nil {
		return c.interrupted("cannot connect to %s: %v: is an RLX server running there?", address, err)
	}
	c.conn = conn
	if c.config.TLS != nil {
		config := c.config.TLS.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(address)
		}
		secure := tls.Client(conn, config)
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if err := secure.Handshake(); err != nil {
			lost := c.interrupted("no TLS with %s: %v", address, err)
			var network net.Error
			if !errors.As(err, &network) && !errors.Is(err, io.EOF) || certificate(err) {
				lost.meaning = ErrFailed
			}
			return lost
		}
		conn.SetDeadline(time.Time{})
		c.conn = secure
	}
	if err := c.send(hello, h); err != nil {
		return err
	}
	if c.config.EnvironmentParameters {
		c.limit += 2048 * c.config.Environments
	}
	return c.hear(welcome)
}

func certificate(err error) bool {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var other x509.CertificateInvalidError
	return errors.As(err, &authority) || errors.As(err, &name) || errors.As(err, &other)
}

// backOff waits before the next attempt, longer after each failure. It returns false if the client must give up.
func (c *Client) backOff() bool {
	wait := time.Duration(math.Min(30, 0.5*math.Pow(2, float64(c.failures))) * (0.5 + rand.Float64()/2) * float64(time.Second))
	if after := time.Duration(float64(c.lost.after) * (1 + rand.Float64()/5)); after > wait {
		wait = after
	}
	if c.failures == 0 {
		c.since = time.Now()
	}
	c.failures++
	if time.Since(c.since)+wait > c.config.Retry {
		c.failures = 0
		return false
	}
	c.address++
	c.config.OnRetry(c.lost, wait)
	time.Sleep(wait)
	return true
}

// Connect connects now. Otherwise the first Init connects.
func (c *Client) Connect() error {
	for c.conn == nil {
		if c.end != nil {
			return c.end
		}
		if lost := c.lost; lost != nil && lost.meaning == ErrInterrupted && !c.backOff() {
			c.lost = nil
			return &Error{Code: lost.Code, Sentence: lost.Sentence, meaning: ErrFailed}
		}
		c.lost = nil
		if err := c.try(); err != nil {
			c.hangUp(false)
			if !errors.Is(err, ErrInterrupted) {
				return err
			}
			continue
		}
		c.state = idle
	}
	return nil
}

func (c *Client) ask(kind uint64, content part, due uint64) error {
	if err := c.send(kind, content); err != nil {
		return err
	}
	if err := c.hear(due); err != nil {
		return err
	}
	c.answered, c.failures, c.state = true, 0, playing
	if due == returns {
		c.state = idle
	}
	return nil
}

// fit checks the marked rows of a batch: an observation, or an action, which must respect the bounds of its space.
func (c *Client) fit(what string, leaves [][]byte, rows []bool) error {
	space, bounds := c.observation, what == "action"
	if bounds {
		space = c.action
	}
	if len(leaves) != len(space) {
		return invalid("an %s has %d leaves; the space has %d", what, len(leaves), len(space))
	}
	void := false
	for _, one := range rows {
		void = void || !one
	}
	if !void {
		rows = nil // all: this is faster
	}
	for i, l := range space {
		if !l.legal(leaves[i], c.config.Environments, rows, bounds) {
			return invalid("leaf %d of the %s has a wrong size, or a value that is NaN, infinite or outside the space", i, what)
		}
	}
	return nil
}

// masks checks the lengths of masks, and whether environments may be idle.
func (c *Client) masks(idle []bool, others ...[]bool) error {
	for _, mask := range append(others, idle) {
		if len(mask) != 0 && len(mask) != c.config.Environments {
			return invalid("a mask has %d entries; there are %d environments", len(mask), c.config.Environments)
		}
	}
	for i, one := range idle {
		if one && !c.config.OutOfStep {
			return invalid("environment %d is idle: set Config.OutOfStep", i)
		}
	}
	return nil
}

func on(mask []bool, i int) bool { return len(mask) > 0 && mask[i] }

// Init begins an episode in every environment and returns the first actions. partial: nil, or true where an episode
// continues. With Config.EnvironmentParameters, all are partial if the parameters of this connection were not read.
func (c *Client) Init(observation [][]byte, partial []bool) ([][]byte, error) {
	return c.InitIdle(observation, partial, nil)
}

// InitIdle is Init with Config.OutOfStep. idle: nil, or true where no episode begins yet; the observation is ignored there.
func (c *Client) InitIdle(observation [][]byte, partial, idle []bool) ([][]byte, error) {
	if c.state == playing {
		return nil, invalid("an episode is in progress: call Reset first")
	}
	if err := c.masks(idle, partial); err != nil {
		return nil, err
	}
	for i := range c.live {
		c.live[i] = !on(idle, i)
	}
	if err := c.fit("observation", observation, c.live); err != nil {
		return nil, err
	}
	n := c.config.Environments
	for {
		err := c.Connect()
		if err != nil {
			return nil, err
		}
		continued := partial
		if len(c.ParameterNames) > 0 && !c.informed {
			continued = make([]bool, n)
			for i := range continued {
				continued[i] = true
			}
		}
		if err = c.hear(0); err == nil {
			err = c.ask(initial, part{}.leaves(1, c.observation, observation, n).mask(2, continued).mask(3, idle), actions)
		}
		if err == nil {
			for i := range c.between {
				c.between[i] = on(idle, i)
			}
			return c.actions, nil
		}
		if !errors.Is(err, ErrInterrupted) {
			return nil, err
		}
	}
}

// Parameters returns the values of each parameter for the next episodes, N by name. Read them whenever an environment
// begins an episode. It connects if there is no connection. Only with Config.EnvironmentParameters.
func (c *Client) Parameters() (map[string][]float64, error) {
	if !c.config.EnvironmentParameters {
		return nil, invalid("there are no parameters: set Config.EnvironmentParameters")
	}
	if err := c.Connect(); err != nil {
		return nil, err
	}
	c.informed = true
	all := map[string][]float64{}
	for k, name := range c.ParameterNames {
		for ; k < len(c.parameters); k += len(c.ParameterNames) {
			all[name] = append(all[name], c.parameters[k])
		}
	}
	return all, nil
}

// took checks the actions that the client chose. It removes them if none is marked.
func (c *Client) took(o *Outcome, stepping bool) error {
	any := false
	for i, one := range o.Chosen {
		if one && !c.config.ChosenActions {
			return invalid("environment %d is chosen: set Config.ChosenActions", i)
		}
		if one && (c.between[i] || stepping && on(o.Idle, i) && !c.ended[i]) {
			return invalid("environment %d is chosen, but it took no action", i)
		}
		any = any || one
	}
	if !any {
		o.Action = nil
		return nil
	}
	return c.fit("action", o.Action, o.Chosen)
}

// check checks an outcome, and records which episodes end, and which rows of its observations are not void.
func (c *Client) check(o *Outcome, stepping bool) error {
	n := c.config.Environments
	if c.conn == nil {
		if c.end != nil {
			return c.end
		}
		return &Error{Sentence: "the connection is lost: call Init to reconnect", meaning: ErrInterrupted}
	}
	if c.state != playing {
		return invalid("no episode is in progress: call Init first")
	}
	if err := c.masks(o.Idle, o.Terminated, o.Truncated, o.Chosen); err != nil {
		return err
	}
	if len(o.Reward) != n {
		return invalid("%d rewards; there are %d environments", len(o.Reward), n)
	}
	needed, allowed := false, !stepping
	for i := range c.ended {
		over := stepping && on(o.Terminated, i)
		cut := on(o.Truncated, i) && !over && (stepping || !c.between[i])
		c.cut[i], c.ended[i] = cut, over || cut
		c.live[i] = !on(o.Idle, i) || c.ended[i] && c.habit(i) == NextStep
		c.same[i] = !stepping || c.ended[i] && c.habit(i) == SameStep
		if !(math.Abs(o.Reward[i]) <= 1e15) {
			return invalid("the reward of environment %d is %v; it must be from -1e15 to 1e15", i, o.Reward[i])
		}
		if stepping && c.ended[i] && (c.habit(i) == Disabled || c.between[i]) {
			return invalid("the episode of environment %d cannot end in this step", i)
		}
		needed = needed || cut && (!stepping || c.habit(i) == SameStep)
		allowed = allowed || c.same[i]
	}
	if len(o.FinalObservation) == 0 && needed {
		return invalid("a truncated episode needs its final observation")
	}
	if len(o.FinalObservation) > 0 {
		if !allowed {
			return invalid("a final observation was given, but no episode ended")
		}
		if err := c.fit("observation", o.FinalObservation, c.same); err != nil {
			return err
		}
	}
	if len(o.Episodes) > n || (len(o.Episodes) > 0 && !c.config.ReportsEpisodes) {
		return invalid("%d episodes without ReportsEpisodes, or too many", len(o.Episodes))
	}
	for _, e := range o.Episodes {
		if e.Environment < 0 || e.Environment >= n || e.Length < 1 || !(math.Abs(e.Return) <= 1e30) {
			return invalid("an episode with an invalid environment, length or return: %+v", e)
		}
	}
	if err := c.took(o, stepping); err != nil || !stepping {
		return err
	}
	return c.fit("observation", o.Observation, c.live)
}

// Step sends an outcome and returns the next actions. The client sets `first` where an environment was between two
// episodes (NextStep, or idle): its reward is void.
func (c *Client) Step(o Outcome) ([][]byte, error) {
	if err := c.check(&o, true); err != nil {
		return nil, err
	}
	if err := c.hear(0); err != nil {
		return nil, err
	}
	n := c.config.Environments
	p := make(part, 0, 256+16*n+n*(2*size(c.observation)+size(c.action))).doubles(1, o.Reward)
	p = p.leaves(2, c.observation, o.Observation, n)
	p = p.mask(3, o.Terminated).mask(4, c.cut).leaves(5, c.observation, o.FinalObservation, n)
	first := make([]bool, n)
	for i := range first {
		first[i] = c.between[i] && !on(o.Idle, i)
	}
	p = p.mask(6, first).episodes(7, o.Episodes).mask(8, o.Idle).mask(9, o.Chosen).leaves(10, c.action, o.Action, n)
	if err := c.ask(step, p, actions); err != nil {
		return nil, err
	}
	for i := range c.between {
		if on(o.Idle, i) {
			c.between[i] = c.between[i] || c.ended[i]
		} else {
			c.between[i] = c.ended[i] && c.habit(i) == NextStep
		}
	}
	return c.actions, nil
}

// Reset ends the episode of every environment and returns their returns.
func (c *Client) Reset(o Outcome) ([]float64, error) {
	if err := c.check(&o, false); err != nil {
		return nil, err
	}
	if err := c.hear(0); err != nil {
		return nil, err
	}
	n := c.config.Environments
	p := part{}.doubles(1, o.Reward).mask(2, c.cut).leaves(3, c.observation, o.FinalObservation, n)
	p = p.episodes(4, o.Episodes).mask(5, o.Chosen).leaves(6, c.action, o.Action, n)
	if err := c.ask(reset, p, returns); err != nil {
		return nil, err
	}
	return c.returns, nil
}

// Metric adds a scalar to the next message, with a valid name ("a b" becomes a_b). It is dropped if there is no
// connection, or if it exceeds the server's limits.
func (c *Client) Metric(name string, value float64) error {
	if name == "" || !(math.Abs(value) <= 1e30) {
		return invalid("a metric needs a name and a value from -1e30 to 1e30")
	}
	name = formed(name)
	if c.conn == nil || len(name) > c.nameBytes || (!c.used[name] && len(c.used) == c.names) || len(c.scalars) > 1<<16 {
		return nil
	}
	c.used[name] = true
	scalar := part{}.text(1, name).varint(2<<3 | 1).double(value)
	c.scalars = append(c.scalars, frame(metrics, part{}.bytes(1, scalar))...)
	return nil
}

// formed returns the name of a metric as the server keeps it.
func formed(name string) string {
	name = strings.Map(func(r rune) rune {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if letter || strings.ContainsRune("0123456789_-./", r) {
			return r
		}
		return '_'
	}, name)
	if name[0] == '/' {
		return "_" + name[1:]
	}
	return name
}

// Alive sends a ping, for environments that are slower than the server's idle timeout.
func (c *Client) Alive() error {
	if c.conn == nil {
		return &Error{Sentence: "the connection is lost", meaning: ErrInterrupted}
	}
	if err := c.send(ping, part{}.integer(1, 1)); err != nil {
		return err
	}
	return c.hear(serverPong)
}

// Close sends bye and disconnects.
func (c *Client) Close() {
	if c.conn != nil {
		c.send(bye, nil)
		c.hangUp(true)
	}
}
