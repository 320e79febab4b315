// Play executes commands from standard input, one a line, and prints what it receives: see protocol/clients/README.md.
package main

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	rlx "github.com/deeplearninc/relaax/protocol/clients/go"
)

type line []string

func (l *line) word() string {
	word := (*l)[0]
	*l = (*l)[1:]
	return word
}

func (l *line) integer() int64 {
	v, err := strconv.ParseInt(l.word(), 10, 64)
	check(err)
	return v
}

func (l *line) bytes() []byte {
	word := l.word()
	if word == "-" {
		return nil
	}
	data, err := hex.DecodeString(word)
	check(err)
	return data
}

func number(bits string) float64 {
	v, err := strconv.ParseUint(bits, 16, 64)
	check(err)
	return math.Float64frombits(v)
}

func (l *line) numbers() []float64 {
	all := make([]float64, l.integer())
	for i := range all {
		all[i] = number(l.word())
	}
	return all
}

func integers[T uint32 | int64 | rlx.Autoreset](l *line) []T {
	all := make([]T, l.integer())
	for i := range all {
		all[i] = T(l.integer())
	}
	return all
}

func (l *line) space() rlx.Space {
	switch kind := l.word(); kind {
	case "box":
		dtype := rlx.Dtype(l.integer())
		shape := integers[uint32](l)
		low := l.numbers()
		return rlx.Box(dtype, shape, low, l.numbers())
	case "discrete":
		n := l.integer()
		return rlx.Discrete(n, l.integer())
	case "multi_discrete":
		return rlx.MultiDiscrete(integers[int64](l)...)
	case "multi_binary":
		return rlx.MultiBinary(integers[uint32](l)...)
	case "tuple":
		parts := make([]rlx.Space, l.integer())
		for i := range parts {
			parts[i] = l.space()
		}
		return rlx.Tuple(parts...)
	default:
		parts := map[string]rlx.Space{}
		for n := l.integer(); n > 0; n-- {
			key := string(l.bytes())
			parts[key] = l.space()
		}
		return rlx.Dict(parts)
	}
}

func (l *line) mask() []bool {
	word := l.word()
	if word == "-" {
		return nil
	}
	mask := make([]bool, len(word))
	for i := range mask {
		mask[i] = word[i] == '1'
	}
	return mask
}

// leaves returns n leaves, or none at the end of the line.
func (l *line) leaves(n int) (all [][]byte) {
	for ; len(*l) > 0 && n > 0; n-- {
		all = append(all, l.bytes())
	}
	return all
}

func (p *player) outcome(l *line, stepping bool) (o rlx.Outcome) {
	o.Reward = l.numbers()
	if stepping {
		o.Terminated = l.mask()
	}
	o.Truncated = l.mask()
	if stepping {
		o.Idle = l.mask()
	}
	o.Chosen = l.mask()
	if episodes := l.word(); episodes != "-" {
		for _, one := range strings.Split(episodes, ",") {
			parts := strings.Split(one, ":")
			environment, err := strconv.Atoi(parts[0])
			check(err)
			length, err := strconv.Atoi(parts[2])
			check(err)
			o.Episodes = append(o.Episodes, rlx.Episode{Environment: environment, Return: number(parts[1]), Length: length})
		}
	}
	if stepping {
		o.Observation = l.leaves(p.observation)
	}
	if o.Chosen != nil {
		last := len(*l) - p.action
		action := (*l)[last:]
		o.Action, *l = action.leaves(p.action), (*l)[:last]
	}
	o.FinalObservation = l.leaves(p.observation)
	return o
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}

// A player has the client of the commands, and the numbers of leaves of its observations and its actions.
type player struct {
	client              *rlx.Client
	parameters          bool
	observation, action int
}

func (p *player) connect(l *line) (err error) {
	c := rlx.Config{Addresses: []string{l.word()}, Environments: int(l.integer()), Mode: rlx.Mode(l.integer()), Retry: -1}
	c.FrameSkip, c.ReportsEpisodes, c.OutOfStep = int(l.integer()), l.integer() != 0, l.integer() != 0
	c.ChosenActions, c.EnvironmentParameters = l.integer() != 0, l.integer() != 0
	c.Autoreset = integers[rlx.Autoreset](l)
	c.Environment, c.Host, c.Token, c.SessionID = string(l.bytes()), string(l.bytes()), string(l.bytes()), string(l.bytes())
	c.Observation = l.space()
	c.Action = l.space()
	p.client, err = rlx.New(c)
	check(err)
	p.parameters = c.EnvironmentParameters
	if err = p.client.Connect(); err == nil {
		fmt.Printf("welcome %x %x\n", p.client.Session, p.client.Algorithm)
		p.printParameters()
	}
	return err
}

func (p *player) printParameters() {
	if !p.parameters {
		return
	}
	all, err := p.client.Parameters()
	check(err)
	fmt.Print("parameters")
	for _, name := range p.client.ParameterNames {
		fmt.Printf(" %x", name)
		printNumbers(all[name])
	}
	fmt.Println()
}

func printNumbers(numbers []float64) {
	for _, one := range numbers {
		fmt.Printf(" %x", rlx.Bytes([]float64{one}))
	}
}

func (p *player) perform(l line) (err error) {
	var actions [][]byte
	switch command := l.word(); command {
	case "connect":
		err = p.connect(&l)
	case "metric":
		name := string(l.bytes())
		err = p.client.Metric(name, number(l.word()))
	case "ping":
		if err = p.client.Alive(); err == nil {
			fmt.Println("pong")
		}
	case "init":
		partial := l.mask()
		idle := l.mask()
		p.observation = len(l)
		actions, err = p.client.InitIdle(l.leaves(len(l)), partial, idle)
	case "step":
		actions, err = p.client.Step(p.outcome(&l, true))
	case "reset":
		var returns []float64
		if returns, err = p.client.Reset(p.outcome(&l, false)); err == nil {
			fmt.Print("returns")
			printNumbers(returns)
			fmt.Println()
		}
	}
	if err == nil && actions != nil {
		p.action = len(actions)
		fmt.Print("actions")
		for _, leaf := range actions {
			fmt.Printf(" %x", leaf)
		}
		fmt.Println()
		p.printParameters()
	}
	return err
}

func main() {
	var p player
	over := false // after a connection has ended, other commands are skipped
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		if lines.Text() == "end" {
			p.client.Close()
			over = false
			fmt.Println("end")
		}
		if over || lines.Text() == "end" {
			continue
		}
		err := p.perform(strings.Fields(lines.Text()))
		var wrong *rlx.Error
		if err == nil || !errors.As(err, &wrong) {
			check(err)
			continue
		}
		switch {
		case errors.Is(err, rlx.ErrFinished):
			fmt.Println("finished", wrong.GlobalStep, wrong)
		case errors.Is(err, rlx.ErrInvalid):
			fmt.Println("invalid", wrong.Code, wrong)
			continue
		default:
			fmt.Println("lost", wrong.Code, wrong)
		}
		over = true
	}
}
