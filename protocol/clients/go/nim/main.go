// Nim, a game of two in turns, as an RLX client with environments out of step:
//
//	nim HOST:PORT[,HOST:PORT] [--games N] [--mode train|exploit] [--episodes K] [--seed S]
//
// There are up to 21 sticks. The players take 1, 2 or 3 in turn, and the one who takes the last stick wins. Both players
// of all games are environments of one connection, so one policy plays against itself. The player whose turn it is not
// is idle. An action mask excludes moves that take more sticks than there are.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"

	rlx "github.com/deeplearninc/relaax/protocol/clients/go"
)

const most, moves = 21, 3

type game struct {
	sticks, turn int
	playing      [2]bool // whether a player has moved in this game
}

type table struct {
	client           *rlx.Client
	games            []game
	random           *rand.Rand
	played, wanted   int
	best, answerable int // best moves, and the positions in which there was one
	reward           []float64
	terminated, idle []bool
	sticks           []float32 // the position of each player, one-hot
	mask             []int8
}

func (t *table) deal(g *game) {
	*g = game{sticks: 1 + t.random.Intn(most), turn: t.random.Intn(2)}
}

// show fills in the row of the player whose turn it is, and marks the other player as idle.
func (t *table) show(index int) {
	g := &t.games[index]
	row := 2*index + g.turn
	t.idle[row], t.idle[2*index+1-g.turn] = false, true
	for i := 0; i < most; i++ {
		t.sticks[row*most+i] = 0
	}
	t.sticks[row*most+g.sticks-1] = 1
	for i := 0; i < moves; i++ {
		t.mask[row*moves+i] = 0
		if i < g.sticks {
			t.mask[row*moves+i] = 1
		}
	}
}

func (t *table) leaves() [][]byte {
	return [][]byte{rlx.Bytes(t.mask), rlx.Bytes(t.sticks)} // in the order of the keys
}

// move carries out the action of the player whose turn it is, and deals again if it was the last one.
func (t *table) move(index, taken int) {
	g := &t.games[index]
	if g.sticks%(moves+1) != 0 {
		t.answerable++
		if taken == g.sticks%(moves+1) {
			t.best++
		}
	}
	g.sticks -= taken
	g.playing[g.turn] = true
	if g.sticks > 0 {
		g.turn = 1 - g.turn
	} else {
		t.played++
		winner := 2*index + g.turn
		t.reward[winner], t.terminated[winner] = 1, true
		if loser := 2*index + 1 - g.turn; g.playing[1-g.turn] { // it took part: its last move has this outcome
			t.reward[loser], t.terminated[loser] = -1, true
		}
		t.deal(g)
	}
	t.show(index)
}

func (t *table) play() error {
	for index := range t.games {
		t.deal(&t.games[index])
		t.show(index)
	}
	actions, err := t.client.InitIdle(t.leaves(), nil, t.idle)
	for err == nil && (t.wanted == 0 || t.played < t.wanted) {
		taken := rlx.Values[int64](actions[0])
		for row := range t.reward {
			t.reward[row], t.terminated[row] = 0, false
		}
		for index, g := range t.games {
			t.move(index, int(taken[2*index+g.turn])+1)
		}
		actions, err = t.client.Step(rlx.Outcome{
			Reward: t.reward, Observation: t.leaves(), Terminated: t.terminated, Idle: t.idle,
		})
	}
	return err
}

func run() error {
	games := flag.Int("games", 4, "how many on this connection")
	mode := flag.String("mode", "train", "train or exploit")
	wanted := flag.Int("episodes", 0, "how many games to play; 0: until training ends")
	seed := flag.Int64("seed", time.Now().UnixNano(), "of the positions")
	if len(os.Args) < 2 {
		return errors.New("usage: nim HOST:PORT [--games N] [--mode train|exploit] [--episodes K] [--seed S]")
	}
	flag.CommandLine.Parse(os.Args[2:])
	n := 2 * *games
	config := rlx.Config{
		Addresses: strings.Split(os.Args[1], ","), Environment: "Nim", Environments: n, OutOfStep: true,
		Observation: rlx.Dict(map[string]rlx.Space{
			"action_mask": rlx.Box(rlx.Int8, []uint32{moves}, []float64{0}, []float64{1}),
			"sticks":      rlx.Box(rlx.Float32, []uint32{most}, []float64{0}, []float64{1}),
		}),
		Action: rlx.Discrete(moves, 0), Autoreset: []rlx.Autoreset{rlx.SameStep}, Mode: rlx.Train,
	}
	config.Host, _ = os.Hostname()
	if *mode == "exploit" {
		config.Mode = rlx.Exploit
	}
	client, err := rlx.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	t := &table{
		client: client, games: make([]game, *games), random: rand.New(rand.NewSource(*seed)), wanted: *wanted,
		reward: make([]float64, n), terminated: make([]bool, n), idle: make([]bool, n),
		sticks: make([]float32, n*most), mask: make([]int8, n*moves),
	}
	for err = t.play(); errors.Is(err, rlx.ErrInterrupted); { // new games, on a new connection
		err = t.play()
	}
	if t.answerable > 0 {
		fmt.Printf("%d games, %.3f of the moves were best\n", t.played, float64(t.best)/float64(t.answerable))
	}
	if errors.Is(err, rlx.ErrFinished) {
		fmt.Println("training has finished")
		return nil
	}
	return err
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
